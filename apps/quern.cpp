// quern: the program. Dispatches to its subcommands, and turns an Error into one line and exit code 1.
#include <cstdio>

#include "base/check.h"

int main() {
  std::fprintf(stderr, "quern: no subcommand is built yet\n");
  return 2;
}
