// --effort as the server takes it: clients' names become the template's (high → xhigh), "none" is --no-think, and
// others are refused.
#pragma once

#include "local_engine.h"

namespace quern {

// To be called after flags.add_to(app).
void check_effort(CLI::App& app, ReplyFlags& flags);

}  // namespace quern
