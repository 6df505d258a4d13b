// Numpy arrays in and out of the bindings: checked arguments, borrowed views, copies.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine_api.hpp"

namespace deepinfer::bindings {

namespace py = pybind11;

template <class T>
using Dense = py::array_t<T, py::array::c_style>;

// A read-only view of memory that `owner` keeps alive, made without an allocation besides the array's own: a
// step has many of them. Without an owner it is a copy.
template <class T, std::size_t Dimensions>
py::array borrow(const T* data, const std::array<py::ssize_t, Dimensions>& shape, py::handle owner) {
  if (!owner) return py::array(py::dtype::of<T>(), shape, data);
  const auto& api = py::detail::npy_api::get();
  auto view = py::reinterpret_steal<py::array>(api.PyArray_NewFromDescr_(
      api.PyArray_Type_,
      py::dtype::of<T>().release().ptr(),
      static_cast<int>(Dimensions),
      shape.data(),
      nullptr,
      const_cast<T*>(data),
      0,
      nullptr
  ));
  if (!view) throw py::error_already_set();
  api.PyArray_SetBaseObject_(view.ptr(), owner.inc_ref().ptr());
  return view;
}

template <class T>
py::array borrow(std::span<const T> values, py::handle owner) {
  return borrow(values.data(), std::array{static_cast<py::ssize_t>(values.size())}, owner);
}

template <class T>
py::array borrow(const Matrix<T>& matrix, py::handle owner) {
  const std::array shape{static_cast<py::ssize_t>(matrix.rows), static_cast<py::ssize_t>(matrix.columns)};
  return borrow(matrix.data, shape, owner);
}

template <class T>
std::span<const T> vector_argument(const char* name, const Dense<T>& array) {
  if (array.ndim() != 1) throw py::value_error(std::string(name) + " must have one dimension");
  return {array.data(), static_cast<std::size_t>(array.size())};
}

template <class T>
Matrix<T> matrix_argument(const char* name, const Dense<T>& array) {
  if (array.ndim() != 2) throw py::value_error(std::string(name) + " must have two dimensions");
  return {array.data(), static_cast<std::size_t>(array.shape(0)), static_cast<std::size_t>(array.shape(1))};
}

inline Record record_argument(const char* name, const Dense<std::int32_t>& array) {
  Record record{};
  if (array.ndim() != 1 || array.size() != static_cast<py::ssize_t>(record.size())) {
    throw py::value_error(std::string(name) + " must be int32[" + std::to_string(record.size()) + "]");
  }
  for (std::size_t i = 0; i < record.size(); ++i) record[i] = array.data()[i];
  return record;
}

// Records are the caller's to reduce in place, so this one is a copy.
inline Dense<std::int32_t> record_result(const Record& record) {
  return Dense<std::int32_t>(static_cast<py::ssize_t>(record.size()), record.data());
}

inline Dense<std::int32_t> owned(const std::vector<std::int32_t>& values) {
  return Dense<std::int32_t>(static_cast<py::ssize_t>(values.size()), values.data());
}

inline std::vector<deepinfer::ImageSpan> image_spans_argument(const Dense<std::int32_t>& array) {
  if (array.size() == 0) return {};
  const auto matrix = matrix_argument("image_spans", array);
  if (matrix.columns != 2) throw py::value_error("image_spans must have two columns: start and end");
  std::vector<deepinfer::ImageSpan> spans;
  for (std::size_t i = 0; i < matrix.rows; ++i) spans.push_back({matrix.data[2 * i], matrix.data[2 * i + 1]});
  return spans;
}

}  // namespace deepinfer::bindings
