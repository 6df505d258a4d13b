// Python bindings of an engine. Compiled once per Python ABI: it knows the abstract interface only.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/engine_api.hpp"
#include "src/arrays.hpp"
#include "src/loan.hpp"

namespace py = pybind11;
using namespace pybind11::literals;

namespace {

using namespace deepinfer::bindings;
using deepinfer::EngineApi;
using deepinfer::Record;

// The engine is locked inside, so the interpreter is free during every call.
template <class Call>
auto without_gil(Call&& call) {
  const py::gil_scoped_release release;
  return std::forward<Call>(call)();
}

// What Python holds: the engine, and what it lent out.
struct Scheduler {
  std::shared_ptr<EngineApi> engine;
  Loan step{"begin_step"};
  Loan committed{"commit"};
  Loan outcomes{"outcomes"};
};

template <class View, Loan Scheduler::* Kind>
struct Borrowed {
  View view;
  py::object owner;
  std::uint64_t generation;

  Borrowed(const View& lent, const py::object& scheduler) : view(lent), owner(scheduler) {
    generation = (py::cast<Scheduler&>(owner).*Kind).generation();
  }

  py::handle token() const {
    const Loan& loan = py::cast<Scheduler&>(owner).*Kind;
    loan.check_current(generation);
    return loan.token();
  }
};

using Step = Borrowed<deepinfer::StepView, &Scheduler::step>;
using Committed = Borrowed<deepinfer::CommittedView, &Scheduler::committed>;
using Outcomes = Borrowed<deepinfer::OutcomesView, &Scheduler::outcomes>;

template <auto Member, class Holder>
void view_property(py::class_<Holder>& type, const char* name) {
  type.def_property_readonly(name, [](const Holder& holder) {
    return borrow(holder.view.*Member, holder.token());
  });
}

void bind_step(py::module_& module) {
  using View = deepinfer::StepView;
  py::class_<Step> step(
      module, "Step", py::module_local(), "One scheduled step; valid until the next begin_step."
  );
  step.def_property_readonly("step_id", [](const Step& s) { return s.view.step_id; });
  step.def_property_readonly("kind", [](const Step& s) { return static_cast<int>(s.view.kind); });
  step.def_property_readonly("num_rows", [](const Step& s) { return s.view.num_rows; });
  step.def_property_readonly("total_q", [](const Step& s) { return s.view.total_q; });
  step.def_property_readonly("graph", [](const Step& s) { return s.view.graph; });
  view_property<&View::ids>(step, "ids");
  view_property<&View::q_len>(step, "q_len");
  view_property<&View::k_len>(step, "k_len");
  view_property<&View::prefill_len>(step, "prefill_len");
  view_property<&View::slot>(step, "slot");
  view_property<&View::remap>(step, "remap");
  view_property<&View::samples>(step, "samples");
  view_property<&View::block_table>(step, "block_table");
  view_property<&View::history>(step, "history");
  view_property<&View::input_ids>(step, "input_ids");
  view_property<&View::positions>(step, "positions");
  view_property<&View::row_of_token>(step, "row_of_token");
  step.def_property_readonly("provisional", [](const Step& s) { return s.view.provisional; });
  view_property<&View::caps>(step, "caps");
  view_property<&View::clone_blocks>(step, "clone_blocks");
  view_property<&View::clone_states>(step, "clone_states");
  view_property<&View::zero_states>(step, "zero_states");
  view_property<&View::ignored>(step, "ignored");
  view_property<&View::preempted>(step, "preempted");
  view_property<&View::loads>(step, "loads");
}

void bind_results(py::module_& module) {
  py::class_<Committed> committed(module, "Committed", py::module_local(), "Valid until the next commit.");
  view_property<&deepinfer::CommittedView::ids>(committed, "ids");
  view_property<&deepinfer::CommittedView::emitted>(committed, "emitted");
  view_property<&deepinfer::CommittedView::reasons>(committed, "reasons");
  py::class_<Outcomes> outcomes(module, "Outcomes", py::module_local(), "Valid until the next outcomes().");
  view_property<&deepinfer::OutcomesView::ids>(outcomes, "ids");
  view_property<&deepinfer::OutcomesView::reasons>(outcomes, "reasons");
  view_property<&deepinfer::OutcomesView::stop_tokens>(outcomes, "stop_tokens");
}

// Prompt, limits and what restricts the cuts of a prompt; see docs/formats.md, section 3.
void add(
    Scheduler& self, std::uint64_t id, const Dense<std::int32_t>& prompt, std::int64_t max_tokens,
    std::int64_t min_tokens, const Dense<std::int32_t>& end_ids, const Dense<std::int32_t>& checkpoints,
    const Dense<std::int32_t>& image_spans
) {
  const auto spans = image_spans_argument(image_spans);
  const deepinfer::NewPrompt request{
      .id = id,
      .tokens = vector_argument("prompt", prompt),
      .limits = {max_tokens, min_tokens, vector_argument("end_ids", end_ids)},
      .checkpoints = vector_argument("checkpoints", checkpoints),
      .image_spans = spans
  };
  without_gil([&] { self.engine->add(request); });
}

void add_prompted(
    Scheduler& self, std::uint64_t id, const Dense<std::int32_t>& tokens, std::int64_t prompt_length,
    std::int64_t max_tokens, std::int64_t min_tokens, const Dense<std::int32_t>& end_ids
) {
  const deepinfer::NewPrompted request{
      .id = id,
      .tokens = vector_argument("tokens", tokens),
      .prompt_length = prompt_length,
      .limits = {max_tokens, min_tokens, vector_argument("end_ids", end_ids)}
  };
  without_gil([&] { self.engine->add_prompted(request); });
}

void fork(Scheduler& self, std::uint64_t parent, const Dense<std::uint64_t>& children) {
  const auto ids = vector_argument("children", children);
  without_gil([&] { self.engine->fork(parent, ids); });
}

void set_cost_curve(Scheduler& self, const Dense<double>& milliseconds) {
  const auto values = vector_argument("milliseconds", milliseconds);
  without_gil([&] { self.engine->set_cost_curve(values); });
}

Dense<std::int32_t> split(
    const Scheduler& self, const Dense<std::int32_t>& caps, const Dense<std::uint16_t>& confidences,
    std::int32_t total
) {
  const auto rows = vector_argument("caps", caps);
  const auto matrix = matrix_argument("confidences", confidences);
  return owned(without_gil([&] { return self.engine->split(rows, matrix, total); }));
}

int begin_step(Scheduler& self, const py::object& flags) {
  Record record{};
  if (!flags.is_none()) record = record_argument("flags", py::cast<Dense<std::int32_t>>(flags));
  const Record* const given = flags.is_none() ? nullptr : &record;
  self.step.check_returned();
  const int action = static_cast<int>(without_gil([&] { return self.engine->begin_step(given); }));
  self.step.renew(self.engine);
  return action;
}

int resolve_vote(Scheduler& self, const Dense<std::int32_t>& reduced) {
  const Record record = record_argument("reduced", reduced);
  return static_cast<int>(without_gil([&] { return self.engine->resolve_vote(record); }));
}

Step step(const py::object& self) {
  const auto& scheduler = py::cast<const Scheduler&>(self);
  return {without_gil([&] { return scheduler.engine->step(); }), self};
}

Committed commit(
    const py::object& self, std::uint64_t step_id, const Dense<std::int32_t>& tokens,
    const Dense<std::int32_t>& counts, const Dense<std::uint16_t>& confidences
) {
  auto& scheduler = py::cast<Scheduler&>(self);
  const deepinfer::StepResults results{
      matrix_argument("tokens", tokens),
      vector_argument("counts", counts),
      matrix_argument("confidences", confidences)
  };
  scheduler.committed.check_returned();
  const auto view = without_gil([&] { return scheduler.engine->commit(step_id, results); });
  scheduler.committed.renew(scheduler.engine);
  return {view, self};
}

Outcomes outcomes(const py::object& self) {
  auto& scheduler = py::cast<Scheduler&>(self);
  scheduler.outcomes.check_returned();
  const auto view = without_gil([&] { return scheduler.engine->outcomes(); });
  scheduler.outcomes.renew(scheduler.engine);
  return {view, self};
}

py::dict stats(const Scheduler& self) {
  py::dict result;
  for (const auto& counter : without_gil([&] { return self.engine->stats(); })) {
    result[py::str(counter.name.data(), counter.name.size())] = counter.value;
  }
  return result;
}

template <auto Method>
void def_by_id(py::class_<Scheduler>& type, const char* name) {
  type.def(
      name,
      [](Scheduler& self, std::uint64_t id) { without_gil([&] { (*self.engine.*Method)(id); }); },
      "id"_a
  );
}

void bind_decision(py::module_& module) {
  using deepinfer::Decision;
  py::class_<Decision> decision(module, "Decision", py::module_local(), "How the last action came about.");
  decision.def_property_readonly("point", [](const Decision& d) { return static_cast<int>(d.point); });
  decision.def_readonly("want", &Decision::want);
  decision.def_readonly("go", &Decision::go);
  decision.def_readonly("scheduled", &Decision::scheduled);
  decision.def_readonly("decode_counter", &Decision::decode_counter);
}

void bind_scheduler(py::module_& module) {
  py::class_<Scheduler> type(
      module, "Scheduler", py::module_local(), "The engine's scheduler: a sans-IO core."
  );
  type.def(py::init([] { return Scheduler{without_gil([] { return deepinfer::make_engine(); })}; }));
  const Dense<std::int32_t> none(py::ssize_t{0});
  type.def(
      "add",
      &add,
      "id"_a,
      "prompt"_a,
      "max_tokens"_a,
      "min_tokens"_a,
      "end_ids"_a,
      "checkpoints"_a = none,
      "image_spans"_a = none
  );
  type.def(
      "add_prompted",
      &add_prompted,
      "id"_a,
      "tokens"_a,
      "prompt_length"_a,
      "max_tokens"_a,
      "min_tokens"_a,
      "end_ids"_a
  );
  type.def("fork", &fork, "parent"_a, "children"_a);
  def_by_id<&EngineApi::pause>(type, "pause");
  def_by_id<&EngineApi::resume>(type, "resume");
  def_by_id<&EngineApi::begin_transfer>(type, "begin_transfer");
  def_by_id<&EngineApi::end_transfer>(type, "end_transfer");
  def_by_id<&EngineApi::abort>(type, "abort");
  type.def(
      "blocks",
      [](const Scheduler& self, std::uint64_t id) {
        return owned(without_gil([&] { return self.engine->blocks(id); }));
      },
      "id"_a
  );
  type.def(
      "slot",
      [](const Scheduler& self, std::uint64_t id) {
        return without_gil([&] { return self.engine->slot(id); });
      },
      "id"_a
  );
  type.def(
      "finish",
      [](Scheduler& self, std::uint64_t id, std::int32_t reason) {
        without_gil([&] { self.engine->finish(id, reason); });
      },
      "id"_a,
      "reason"_a
  );
  type.def(
      "set_pending",
      [](Scheduler& self, bool pending) { without_gil([&] { self.engine->set_pending(pending); }); },
      "pending"_a
  );
  type.def(
      "set_error",
      [](Scheduler& self, const std::string& message) {
        without_gil([&] { self.engine->set_error(message); });
      },
      "message"_a
  );
  type.def("set_cost_curve", &set_cost_curve, "milliseconds"_a);
  type.def(
      "observe",
      [](Scheduler& self, std::int32_t graph, std::int32_t rows, double forward_ms, double sampler_ms) {
        without_gil([&] { self.engine->observe(graph, rows, forward_ms, sampler_ms); });
      },
      "graph"_a,
      "rows"_a,
      "forward_ms"_a,
      "sampler_ms"_a
  );
  type.def("split", &split, "caps"_a, "confidences"_a, "total"_a);
  type.def("begin_step", &begin_step, "flags"_a.none(true));
  type.def("vote", [](const Scheduler& self) {
    return record_result(without_gil([&] { return self.engine->vote(); }));
  });
  type.def("resolve_vote", &resolve_vote, "reduced"_a);
  type.def("flags", [](const Scheduler& self) {
    return record_result(without_gil([&] { return self.engine->flags(); }));
  });
  type.def("decision", [](const Scheduler& self) {
    return without_gil([&] { return self.engine->decision(); });
  });
  type.def("step", &step);
  type.def("commit", &commit, "step_id"_a, "tokens"_a, "counts"_a, "confidences"_a);
  type.def("outcomes", &outcomes);
  type.def("fingerprint", [](const Scheduler& self) {
    return without_gil([&] { return self.engine->fingerprint(); });
  });
  type.def("stats", &stats);
  type.def("fail_reason", [](const Scheduler& self) {
    return without_gil([&] { return self.engine->fail_reason(); });
  });
  type.def("clone", [](const Scheduler& self) {
    return Scheduler{without_gil([&] { return self.engine->clone(); })};
  });
  type.def("check_invariants", [](const Scheduler& self) {
    without_gil([&] { self.engine->check_invariants(); });
  });
}

py::object to_python(const deepinfer::Constant& constant) {
  if (const auto* const integer = std::get_if<std::int64_t>(&constant.value)) return py::int_(*integer);
  if (const auto* const text = std::get_if<std::string_view>(&constant.value)) {
    return py::str(text->data(), text->size());
  }
  py::list items;
  for (const std::int64_t item : std::get<std::vector<std::int64_t>>(constant.value)) items.append(item);
  return items;
}

py::dict constants() {
  py::dict result;
  for (const deepinfer::Constant& constant : deepinfer::engine_info().constants) {
    result[py::str(constant.name.data(), constant.name.size())] = to_python(constant);
  }
  return result;
}

}  // namespace

PYBIND11_MODULE(deepinfer_engine, module) {
  const deepinfer::EngineInfo& info = deepinfer::engine_info();
  module.attr("plan_digest") = py::str(info.plan_digest.data(), info.plan_digest.size());
  module.attr("files_digest") = py::str(info.files_digest.data(), info.files_digest.size());
  module.def("constants", &constants, "The values of EngineConfig by their C++ names.");
  bind_decision(module);
  bind_step(module);
  bind_results(module);
  bind_scheduler(module);
}
