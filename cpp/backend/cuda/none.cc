// Stands where the Cuda backend is not built: says so.
#include "backend/backend.h"

namespace kvart {

Result<std::unique_ptr<Backend>> NewCudaBackend(const BackendOptions& options) {
  return Status(StatusCode::kUnsupported, "this build of kvart has no cuda backend; use the cpu backend");
}

}  // namespace kvart
