#include "server/page.h"

#ifdef QUERN_PAGE_FILE  // src/server/CMakeLists.txt names it
asm(".pushsection .rodata\n"
    "quern_page_begin:\n"
    ".incbin \"" QUERN_PAGE_FILE
    "\"\n"
    "quern_page_end:\n"
    ".popsection\n");
extern "C" {
extern const char page_begin[] asm("quern_page_begin");
extern const char page_end[] asm("quern_page_end");
}
#endif

namespace quern {

std::string_view page_html() {
#ifdef QUERN_PAGE_FILE
  return {page_begin, static_cast<size_t>(page_end - page_begin)};
#else
  return "This build of quern has no web page: node was missing, or scripts/setup had not filled "
         "web/node_modules.\n";
#endif
}

}  // namespace quern
