# The web page. web/ is built by Vite into one HTML file, which src/server/page.cpp takes in. Vite comes from
# web/node_modules, which scripts/setup fills from the lock file, so that a build needs no network. Without them the
# server has no page and says so, here and at /.
find_program(QUERN_NODE node)
set(QUERN_PAGE_FILE "")
set(web ${PROJECT_SOURCE_DIR}/web)
set(vite ${web}/node_modules/vite/bin/vite.js)
if(QUERN_NODE AND EXISTS ${vite})
  set(QUERN_PAGE_FILE ${PROJECT_BINARY_DIR}/web/index.html)
  file(GLOB page_sources CONFIGURE_DEPENDS ${web}/src/*)
  add_custom_command(
    OUTPUT ${QUERN_PAGE_FILE}
    COMMAND ${QUERN_NODE} ${vite} build --logLevel warn --outDir ${PROJECT_BINARY_DIR}/web --emptyOutDir
    DEPENDS ${page_sources} ${web}/index.html ${web}/vite.config.js ${web}/package-lock.json
    WORKING_DIRECTORY ${web}
    COMMENT "Building the web page"
    VERBATIM)
else()
  message(STATUS "web page: left out (node or web/node_modules is missing; scripts/setup installs both)")
endif()
