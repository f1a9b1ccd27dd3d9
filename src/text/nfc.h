// Unicode normalisation form C (UAX #15), Unicode 14.0: canonical decomposition, canonical order,
// composition.
#pragma once

#include <string>
#include <string_view>

namespace quern {

// Appends NFC(text) to `out`. `text` must be valid UTF-8. Linear but for the sorting of long runs of
// combining marks (n log n); text that is already normal, ASCII above all, is only copied.
void append_nfc(std::string& out, std::string_view text);

// True where append_nfc would only copy; may be false for some text that is normal. ASCII is always normal.
bool is_surely_nfc(std::string_view text);

}  // namespace quern
