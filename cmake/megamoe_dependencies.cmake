# The libraries that targets may link; each folder's CMakeLists.txt names the ones it uses.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED CONFIG)
find_package(hwy REQUIRED CONFIG)
find_package(CLI11 REQUIRED CONFIG)
find_package(nlohmann_json REQUIRED CONFIG)
if(MEGAMOE_BUILD_TESTS)
  find_package(GTest REQUIRED CONFIG)
endif()
