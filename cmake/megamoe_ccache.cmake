# Puts ccache in front of the compilers where it is installed; nothing depends on it.
find_program(MEGAMOE_CCACHE ccache)
mark_as_advanced(MEGAMOE_CCACHE)
foreach(language IN ITEMS CXX CUDA)
  if(MEGAMOE_CCACHE AND NOT DEFINED CMAKE_${language}_COMPILER_LAUNCHER)
    set(CMAKE_${language}_COMPILER_LAUNCHER ${MEGAMOE_CCACHE})
  endif()
endforeach()
