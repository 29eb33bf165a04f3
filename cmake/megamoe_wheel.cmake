# What `pip install .` builds: the C library alone, with CUDA where nvcc is, installed into the Python package.

# MEGAMOE_WHEEL_CUDA: "auto" (nvcc decides), ON or OFF.
set(MEGAMOE_WHEEL_CUDA auto CACHE STRING "Whether the wheel holds the SM90 backend: auto (where nvcc is), ON, OFF")
if(MEGAMOE_WHEEL_CUDA STREQUAL "auto")
  find_program(MEGAMOE_NVCC nvcc HINTS ENV CUDACXX ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES bin)
  if(MEGAMOE_NVCC)
    set(MEGAMOE_CUDA ON)
    message(STATUS "megamoe: the wheel holds the CPU and the SM90 backend (${MEGAMOE_NVCC})")
  else()
    set(MEGAMOE_CUDA OFF)
    message(STATUS "megamoe: no nvcc found; the wheel holds the CPU backend only")
  endif()
else()
  set(MEGAMOE_CUDA ${MEGAMOE_WHEEL_CUDA})
endif()

# The C++ runtime comes along, hidden: a process with another one (PyTorch brings its own) sees nothing of it.
function(megamoe_install_wheel)
  target_link_options(megamoe_shared PRIVATE -static-libstdc++ -static-libgcc -Wl,-s)
  install(FILES $<TARGET_FILE:megamoe_shared> DESTINATION megamoe RENAME libmegamoe.so COMPONENT wheel
    PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
endfunction()
