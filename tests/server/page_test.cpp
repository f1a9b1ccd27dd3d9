#include "server/page.h"

#include <gtest/gtest.h>

#include <string>

namespace quern {
namespace {

TEST(Page, is_one_file_that_loads_nothing_or_says_that_it_is_missing) {
  const std::string page(page_html());
  if (!page.starts_with("<")) {
    EXPECT_NE(page.find("no web page"), std::string::npos);
    GTEST_SKIP() << page;
  }
  EXPECT_TRUE(page.starts_with("<!doctype html>"));
  EXPECT_NE(page.find("</html>"), std::string::npos);
  for (const char* loads : {"src=\"", "<link rel=\"stylesheet\"", "@import", "url(http", "import(\""}) {
    EXPECT_EQ(page.find(loads), std::string::npos) << loads;
  }
  EXPECT_LT(page.size(), 200u << 10);
}

}  // namespace
}  // namespace quern
