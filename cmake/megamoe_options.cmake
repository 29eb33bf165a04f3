# megamoe_options: the language level, warnings, numeric flags and include roots that every target links.
add_library(megamoe_options INTERFACE)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

set(megamoe_warnings -Wall -Wextra -Wpedantic -Wshadow -Werror)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  list(APPEND megamoe_warnings -Wno-restrict)  # false alarms on std::string concatenation (GCC bug 105651)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # g++ 12 reports these inside inlined fmt and std::string code that is correct; AddressSanitizer finds the real ones.
  list(APPEND megamoe_warnings -Wno-stringop-overflow -Wno-restrict)
endif()
# No contraction and no value-changing optimisation: docs/numerics.md states every rounding.
set(megamoe_numerics -ffp-contract=off -fno-fast-math)

target_compile_options(megamoe_options INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:${megamoe_warnings};${megamoe_numerics}>")
target_compile_definitions(megamoe_options INTERFACE MEGAMOE_VERSION="${PROJECT_VERSION}")
target_include_directories(megamoe_options INTERFACE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)

if(MEGAMOE_ASSERTS)
  target_compile_options(megamoe_options INTERFACE -UNDEBUG)
endif()

if(MEGAMOE_CUDA)
  # Host passes: the same numeric rules; -Wpedantic and -Wshadow reject what nvcc itself generates.
  # -fmad=false is the device's word for -ffp-contract=off; fused operations are written as intrinsics.
  target_compile_options(megamoe_options INTERFACE
    "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-ffp-contract=off;-Werror=all-warnings;-fmad=false>")
endif()

if(MEGAMOE_SANITIZE STREQUAL "address")
  set(megamoe_sanitizers -fsanitize=address,undefined -fno-sanitize-recover=all)
elseif(MEGAMOE_SANITIZE STREQUAL "thread")
  # g++ expands a fixed-size memcpy inline, where ThreadSanitizer does not see it: races would pass unseen.
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "MEGAMOE_SANITIZE=thread needs clang, since g++ leaves inlined memcpy uninstrumented, got "
      "${CMAKE_CXX_COMPILER_ID}; configure with --preset cpu-tsan")
  endif()
  set(megamoe_sanitizers -fsanitize=thread)
elseif(MEGAMOE_SANITIZE)
  message(FATAL_ERROR "MEGAMOE_SANITIZE must be empty, address or thread, got '${MEGAMOE_SANITIZE}'")
endif()
if(megamoe_sanitizers)
  target_compile_options(megamoe_options INTERFACE
    "$<$<COMPILE_LANGUAGE:CXX>:${megamoe_sanitizers};-fno-omit-frame-pointer>")
  target_link_options(megamoe_options INTERFACE ${megamoe_sanitizers})
endif()
