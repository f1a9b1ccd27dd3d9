// quern bench --synthetic, a program of its own options.
#pragma once

namespace quern {

int bench_synthetic(int argc, char** argv);

}  // namespace quern
