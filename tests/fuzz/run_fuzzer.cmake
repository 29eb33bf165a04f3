# Runs one fuzzer for SECONDS on a copy of its corpus. With EXPECT_BUG the planted bug must be found, and nothing else counts.
file(REMOVE_RECURSE ${WORK_DIR})
file(COPY ${CORPUS}/ DESTINATION ${WORK_DIR}/corpus)
execute_process(
  COMMAND ${FUZZER} -max_total_time=${SECONDS} -timeout=10 -rss_limit_mb=1024 -max_len=2048 -len_control=0 -use_counters=0 -seed=1 -verbosity=0
          -print_final_stats=1 -dict=${DICT} -artifact_prefix=${WORK_DIR}/ ${WORK_DIR}/corpus
  RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
string(REGEX MATCH "stat::number_of_executed_units: *([0-9]+)" units "${output}")
message("${units}")
if(EXPECT_BUG)
  if(result EQUAL 0 OR NOT output MATCHES "heap-buffer-overflow")
    message(FATAL_ERROR "the planted bug was not found in ${SECONDS} s, so a clean run of this fuzzer proves nothing:\n${output}")
  endif()
elseif(NOT result EQUAL 0)
  message(FATAL_ERROR "the fuzzer found something; the input is under ${WORK_DIR}:\n${output}")
elseif(NOT CMAKE_MATCH_1 GREATER 1000)
  message(FATAL_ERROR "the fuzzer ran only '${CMAKE_MATCH_1}' inputs:\n${output}")
endif()
