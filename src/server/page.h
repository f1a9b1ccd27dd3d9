// The web page: one HTML file that the build makes of web/ and puts into the program.
#pragma once

#include <string_view>

namespace quern {

// The page; where the build had no node or web/node_modules (scripts/setup fills it), one line of plain text that says so.
std::string_view page_html();

}  // namespace quern
