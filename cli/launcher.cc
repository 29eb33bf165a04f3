// Tells "no launcher" from "a launcher whose variables are wrong".
#include "cli/launcher.h"

#include <algorithm>
#include <array>
#include <cstdlib>

namespace megamoe::cli {

Result<std::optional<ProcessGroupOptions>> launched_group() {
  constexpr std::array kVariables = {"RANK",
                                     "WORLD_SIZE",
                                     "LOCAL_RANK",
                                     "LOCAL_WORLD_SIZE",
                                     "OMPI_COMM_WORLD_RANK",
                                     "OMPI_COMM_WORLD_SIZE",
                                     "OMPI_COMM_WORLD_LOCAL_RANK",
                                     "OMPI_COMM_WORLD_LOCAL_SIZE"};
  const bool is_launched =
      std::any_of(kVariables.begin(), kVariables.end(), [](const char* name) { return std::getenv(name) != nullptr; });
  if (!is_launched) return std::optional<ProcessGroupOptions>();
  auto group = process_group_from_environment();
  if (!group.ok()) return group.status();
  return std::optional<ProcessGroupOptions>(std::move(group).value());
}

}  // namespace megamoe::cli
