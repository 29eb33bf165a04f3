# What `cmake --install` puts where: the C library, its header, package files, the program, its manual and completion.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS megamoe_shared EXPORT megamoe-targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES ${PROJECT_SOURCE_DIR}/include/megamoe/megamoe.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/megamoe)
install(EXPORT megamoe-targets NAMESPACE megamoe:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/megamoe)

set(megamoe_package_dir ${PROJECT_BINARY_DIR}/package)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/megamoe-config.cmake.in ${megamoe_package_dir}/megamoe-config.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/megamoe)
# Before 1.0 every minor version may break its users.
write_basic_package_version_file(${megamoe_package_dir}/megamoe-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${megamoe_package_dir}/megamoe-config.cmake ${megamoe_package_dir}/megamoe-config-version.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/megamoe)

configure_file(${PROJECT_SOURCE_DIR}/cmake/megamoe.pc.in ${megamoe_package_dir}/megamoe.pc @ONLY)
install(FILES ${megamoe_package_dir}/megamoe.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

if(TARGET megamoe)
  install(TARGETS megamoe RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(FILES ${PROJECT_SOURCE_DIR}/docs/megamoe.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES ${PROJECT_SOURCE_DIR}/cli/completion/megamoe.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
  RENAME megamoe)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/THIRD_PARTY.md DESTINATION ${CMAKE_INSTALL_DOCDIR})

# `cmake --build DIR --target uninstall` removes what the last install wrote.
add_custom_target(uninstall
  COMMAND ${CMAKE_COMMAND} -DMANIFEST=${PROJECT_BINARY_DIR}/install_manifest.txt -P ${PROJECT_SOURCE_DIR}/cmake/uninstall.cmake)
