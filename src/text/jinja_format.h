// Python's two ways of formatting text: `'%s' % value` and `'{}'.format(value)`.
#pragma once

#include "text/jinja_value.h"

namespace quern {

// `values`: a tuple's items in order, a dict by name, or one value.
JinjaText format_percent(const JinjaText& format, const JinjaValue& values, size_t limit);
JinjaText format_braces(JinjaInterpreter& interpreter, const JinjaText& format,
                        const JinjaArguments& arguments);

}  // namespace quern
