# Compiles SOURCE twice: it must pass as it is, and fail with a message matching EXPECT under MEGAMOE_MUST_FAIL.
set(command ${COMPILER} -std=c++20 -fsyntax-only -I${ROOT}/include -I${ROOT}/src)

execute_process(COMMAND ${command} ${SOURCE} RESULT_VARIABLE result ERROR_VARIABLE output)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "must compile without MEGAMOE_MUST_FAIL:\n${output}")
endif()

execute_process(COMMAND ${command} -DMEGAMOE_MUST_FAIL ${SOURCE} RESULT_VARIABLE result ERROR_VARIABLE output)
if(result EQUAL 0)
  message(FATAL_ERROR "must be refused with MEGAMOE_MUST_FAIL, but it compiles")
endif()
if(NOT output MATCHES "${EXPECT}")
  message(FATAL_ERROR "refused, but no message matches '${EXPECT}':\n${output}")
endif()
