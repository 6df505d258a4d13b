// Written by the build into its own folder, never into the generated one: a digest cannot lie in a file that
// it covers.
#include "engine/engine_api.hpp"

namespace deepinfer {

const char kFilesDigest[] = "fedcba9876543210";

}  // namespace deepinfer
