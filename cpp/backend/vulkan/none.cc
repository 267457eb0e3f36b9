// Stands where the Vulkan backend is not built: says so.
#include "backend/backend.h"

namespace kvart {

Result<std::unique_ptr<Backend>> NewVulkanBackend(const BackendOptions& options) {
  return Status(StatusCode::kUnsupported, "this build of kvart has no vulkan backend; use the cpu backend");
}

}  // namespace kvart
