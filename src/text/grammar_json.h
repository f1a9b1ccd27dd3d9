// JSON and JSON schemas → grammar expressions.
//
// Supported: type, enum, const; string: minLength, maxLength, or pattern, or format (date, time, date-time,
// uuid, email, hostname, ipv4, ipv6, uri, duration); number and integer: minimum, maximum, exclusiveMinimum,
// exclusiveMaximum; array: items, prefixItems, minItems, maxItems; object: properties, required,
// additionalProperties, propertyNames of type string or with an enum; anyOf; oneOf where no two branches can both match; allOf where the parts merge; $ref
// within the document, recursion included. Annotations (title, description, default, …) are passed over. Any
// other keyword is an Error that names it and its path.
//
// A pattern beside a format is what is held to where it is anchored at both ends, or where the format's name means
// nothing here: so libraries spell their formats out (zod: email, uuid, date, cuid2, …), and the standard makes of
// `format` an annotation. Any other pattern beside a format that is known here is refused.
//
// The text generated always fits the schema; the reverse is narrowed where JSON has many spellings of one
// value:
//   - members come in declared order; where `properties` are given, others come only if additionalProperties
//   says so
//   - between tokens at most one space, or a line feed and an indent of up to 32 spaces or 8 tabs
//   - numbers have at most 19 digits before and 20 after the point, and two in the exponent; bounded ones
//   none
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "text/grammar_source.h"

namespace quern {

GrammarSource::Id json_any_value(GrammarSource& source);
GrammarSource::Id json_any_object(GrammarSource& source);
// The regular expression behind a string format, or nothing where the format is not supported.
std::optional<std::string_view> string_format(std::string_view name);
// `path` names the schema in messages. References are into `root`, or the schema itself.
GrammarSource::Id json_schema(GrammarSource& source, const Json& schema, const std::string& path,
                              const Json* root = nullptr);

}  // namespace quern
