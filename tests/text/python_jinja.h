// Runs tests/text/render_jinja.py: what Python's jinja2 makes of templates.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/json.h"

namespace quern {

struct PythonResult {
  bool failed = false;
  std::string text;  // the output, or the error
};

inline std::vector<PythonResult> render_with_python(const std::vector<std::pair<std::string, Json>>& cases) {
  Json list(Json::Array{});
  for (const auto& [source, variables] : cases) {
    list.push_back(Json(Json::Object{{"template", source}, {"variables", variables}}));
  }
  const auto path =
      std::filesystem::temp_directory_path() / ("quern-jinja-" + std::to_string(getpid()) + ".json");
  std::ofstream(path) << write_json(list);
  const std::string command =
      std::string("/usr/bin/python3 ") + QUERN_SOURCE_DIR + "/tests/text/render_jinja.py " + path.string();
  FILE* pipe = popen(command.c_str(), "r");
  std::string out;
  std::array<char, 65536> buffer;
  for (size_t n; (n = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) out.append(buffer.data(), n);
  const int status = pclose(pipe);
  std::filesystem::remove(path);
  EXPECT_EQ(status, 0) << "render_jinja.py failed; is python3-jinja2 installed?";
  std::vector<PythonResult> results;
  if (status != 0) return results;
  const Json parsed = parse_json(out);
  for (const Json& result : parsed.as_array()) {
    const Json* error = result.find("error");
    results.push_back(
        {error != nullptr, error != nullptr ? error->as_string() : result.find("text")->as_string()});
  }
  return results;
}

}  // namespace quern
