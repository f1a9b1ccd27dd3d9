// Any bytes: encoding never fails, decodes to the normalised repaired text, and gives no control id unless
// asked to. The streaming and the whole decoder agree on any ids.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/check.h"
#include "base/utf8.h"
#include "text/detokenizer.h"
#include "text/nfc.h"
#include "text/tokenizer.h"

using namespace quern;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Tokenizer tokenizer =
      Tokenizer::from_file(QUERN_SOURCE_DIR "/models/quern-tiny/tokenizer.json");
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  std::string normal;
  append_nfc(normal, repair_utf8(text));
  std::vector<int32_t> plain;
  for (const auto mode : {ControlTokens::AsText, ControlTokens::Recognise}) {
    const auto ids = tokenizer.encode(text, mode);
    const std::string decoded = tokenizer.decode(ids);
    // A recognised token keeps its neighbours from composing with it, so only its bytes are compared there.
    if (mode == ControlTokens::AsText) {
      QUERN_CHECK(decoded == normal, "decode(encode(text)) is not the normalised text");
      for (const int32_t id : ids) QUERN_CHECK(!tokenizer.is_added(id), "a control id from plain text");
    } else {
      QUERN_CHECK(is_valid_utf8(decoded), "decoded text is not UTF-8");
    }
  }
  std::vector<int32_t> ids(size / 2);
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] = (data[2 * i] << 8 | data[2 * i + 1]) % (tokenizer.size() + 3);
  Detokenizer d(tokenizer, false);
  std::string streamed, bytes;
  for (const int32_t id : ids) {
    streamed += d.push(id);
    bytes += tokenizer.token_bytes(id);
  }
  streamed += d.finish();
  QUERN_CHECK(streamed == repair_utf8(bytes), "the stream is not the repaired bytes");
  return 0;
}
