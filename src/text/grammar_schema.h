// JSON schemas as values: references within the document, and the schema that means "both".
#pragma once

#include <string>
#include <vector>

#include "base/json.h"

namespace quern {

// The part of `root` that a $ref points to. Throws Error where it is remote or leads nowhere.
const Json& resolve_schema_ref(const Json& root, const std::string& ref, const std::string& path);

// A schema without allOf, and without a $ref that has constraints beside it: their parts merged into one
// object. Annotations are dropped. Throws Error where two parts cannot be merged.
Json flatten_schema(const Json& root, const Json& schema, const std::string& path);

// The schema that both fit.
Json merge_schemas(const Json& root, const Json& a, const Json& b, const std::string& path, int depth = 0);

// No value fits both, as far as types, enums, required and constant members tell.
bool are_disjoint_schemas(const Json& root, const Json& a, const Json& b);

bool is_schema_annotation(std::string_view keyword);
// The values of enum or const; null where there is neither.
const Json* schema_values(const Json& schema, Json& holder);

}  // namespace quern
