#include "host/order/utf8.h"

#include <gtest/gtest.h>

#include <string>

namespace passing {
namespace {

bool Is(const std::string& text) { return IsUtf8({reinterpret_cast<const uint8_t*>(text.data()), text.size()}); }

TEST(Utf8, IsUtf8) {
  for (const char* text : {"", "sum", "\xC3\xA4", "\xE2\x82\xAC", "\xED\x9F\xBF", "\xEE\x80\x80", "\xF0\x90\x80\x80",
                           "\xF4\x8F\xBF\xBF", "a\xC3\xA4z\xF0\x9F\x98\x80"}) {
    EXPECT_TRUE(Is(text)) << text;
  }
  EXPECT_TRUE(Is(std::string(1, '\0')));
}

TEST(Utf8, IsUtf8_whatIsNot) {
  for (const char* text : {
           "\x80", "a\xBF", "\xFF", "\xC3", "\xC3z", "\xE2\x82", "\xF0\x9F\x98",  // lone, cut
           "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xF0\x8F\xBF\xBF",            // overlong
           "\xED\xA0\x80", "\xED\xBF\xBF",                                        // surrogates
           "\xF4\x90\x80\x80", "\xF5\x80\x80\x80"                                 // too large
       }) {
    EXPECT_FALSE(Is(text));
  }
}

TEST(Utf8, prefixEndsBetweenCharacters) {
  const std::string text = "a\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80";  // of 1, 2, 3 and 4 bytes
  const size_t expected[] = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 10};
  for (size_t limit = 0; limit < std::size(expected); ++limit) {
    EXPECT_EQ(Utf8Prefix(text, limit), expected[limit]);
    EXPECT_TRUE(Is(text.substr(0, Utf8Prefix(text, limit))));
  }
}

}  // namespace
}  // namespace passing
