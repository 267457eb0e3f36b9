#include "backend/backend.h"

#include <string>

namespace kvart {

Result<std::unique_ptr<Backend>> NewBackend(std::string_view name, const BackendOptions& options) {
  if (name == "cpu") return NewCpuBackend(options);
  if (name == "cuda") return NewCudaBackend(options);
  if (name == "vulkan") return NewVulkanBackend(options);
  return Status(StatusCode::kInvalidArgument,
                "unknown backend '" + std::string(name.substr(0, 64)) + "': cpu, cuda or vulkan is wanted");
}

}  // namespace kvart
