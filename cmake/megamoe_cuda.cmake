# The CUDA compiler for sm_90a: the exact architecture flags and a statically linked runtime.
if(NOT CMAKE_CUDA_COMPILER)
  find_program(MEGAMOE_NVCC nvcc HINTS ENV CUDACXX ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES bin)
  if(NOT MEGAMOE_NVCC)
    message(FATAL_ERROR "MEGAMOE_CUDA needs nvcc, which is neither on PATH nor in /usr/local/cuda/bin; "
      "set CUDACXX, or configure with -DMEGAMOE_CUDA=OFF for a CPU-only build")
  endif()
  set(CMAKE_CUDA_COMPILER ${MEGAMOE_NVCC})
endif()

# One image for sm_90a and no PTX: a generic compute_90 image would reject wgmma and setmaxnreg.
set(CMAKE_CUDA_ARCHITECTURES 90a-real)
# libcudart is linked statically and libcuda is never linked, so that the program starts without a driver.
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
enable_language(CUDA)
# CMake learned nvcc's flag for C++20 in 3.26; Debian 12 has 3.25, so its table entry is filled in here.
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
