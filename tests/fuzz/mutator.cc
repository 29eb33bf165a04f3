// A mutator that knows JSON's words: bytes changed at random seldom pass the parser, whole words often do.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed);

namespace {

bool is_word_byte(char c) {
  return c == '-' || c == '+' || c == '.' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == 'E';
}

/// Strings with their quotes, numbers and literals, and every other byte by itself.
std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = begin + 1;
    if (text[begin] == '"') {
      while (end < text.size() && text[end] != '"') end += text[end] == '\\' ? 2 : 1;
      end = std::min(end + 1, text.size());
    } else if (is_word_byte(text[begin])) {
      while (end < text.size() && is_word_byte(text[end])) ++end;
    }
    words.emplace_back(text.substr(begin, end - begin));
    begin = end;
  }
  return words;
}

constexpr std::array<std::string_view, 16> kNumbers = {"0",
                                                       "1",
                                                       "2",
                                                       "4",
                                                       "8",
                                                       "64",
                                                       "128",
                                                       "255",
                                                       "256",
                                                       "4294967296",
                                                       "9223372036854775807",
                                                       "9223372036854775808",
                                                       "18446744073709551615",
                                                       "-1",
                                                       "1.0",
                                                       "1e400"};

class Mutation {
 public:
  explicit Mutation(unsigned int seed) : random_(seed) {}

  size_t below(size_t limit) { return limit == 0 ? 0 : random_() % limit; }

  void apply(std::vector<std::string>& words) {
    const size_t place = below(words.size());
    const size_t other = below(words.size());
    switch (below(8)) {
      case 0:
        words.erase(words.begin() + offset(place));
        break;
      case 1: {  // A stretch again, elsewhere: another element, another level.
        const size_t end = std::min(words.size(), place + 1 + below(16));
        insert(words, other, place, end);
        break;
      }
      case 2: {  // A member again, next to itself or elsewhere.
        const auto [begin, end] = between_commas(words, place);
        if (begin < end) insert(words, below(2) == 0 ? begin : between_commas(words, other).first, begin, end);
        break;
      }
      case 3: {
        const auto [begin, end] = between_commas(words, place);
        words.erase(words.begin() + offset(begin), words.begin() + offset(end));
        break;
      }
      case 4:
        words[number_near(words, place)] = kNumbers[below(kNumbers.size())];
        break;
      case 5:
        words[string_near(words, place)] = words[string_near(words, other)];
        break;
      case 6:
        lengthen(words[string_near(words, place)]);
        break;
      default:
        mutate_bytes(words[place]);
        break;
    }
  }

 private:
  static std::ptrdiff_t offset(size_t idx) { return static_cast<std::ptrdiff_t>(idx); }

  static void insert(std::vector<std::string>& words, size_t place, size_t begin, size_t end) {
    const std::vector<std::string> stretch(words.begin() + offset(begin), words.begin() + offset(end));
    words.insert(words.begin() + offset(place), stretch.begin(), stretch.end());
  }

  /// The words after the comma before `place` up to and with the next one.
  static std::pair<size_t, size_t> between_commas(const std::vector<std::string>& words, size_t place) {
    size_t begin = place;
    while (begin > 0 && words[begin - 1] != ",") --begin;
    size_t end = place;
    while (end < words.size() && words[end] != ",") ++end;
    return {begin, std::min(end + 1, words.size())};
  }

  static size_t number_near(const std::vector<std::string>& words, size_t place) {
    return near(words, place, [](char c) { return c == '-' || (c >= '0' && c <= '9'); });
  }
  static size_t string_near(const std::vector<std::string>& words, size_t place) {
    return near(words, place, [](char c) { return c == '"'; });
  }

  /// The first word from `place` on, around the end, that begins so; `place` where there is none.
  template <class Begins>
  static size_t near(const std::vector<std::string>& words, size_t place, Begins begins) {
    for (size_t step = 0; step < words.size(); ++step) {
      const size_t idx = (place + step) % words.size();
      if (!words[idx].empty() && begins(words[idx].front())) return idx;
    }
    return place;
  }

  void lengthen(std::string& word) {
    const size_t place = std::min(word.size(), size_t{1});
    word.insert(place, std::string(1 + below(40), static_cast<char>('a' + below(26))));
  }

  void mutate_bytes(std::string& word) {
    const size_t size = word.size();
    word.resize(size + 16);
    word.resize(LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(word.data()), size, word.size()));
  }

  std::minstd_rand random_;
};

}  // namespace

size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  Mutation mutation(seed);
  if (size == 0 || mutation.below(4) == 0) return LLVMFuzzerMutate(data, size, max_size);
  std::vector<std::string> words = words_of({reinterpret_cast<const char*>(data), size});
  const size_t num_changes = mutation.below(2) == 0 ? 1 : 2 + mutation.below(3);
  for (size_t change = 0; change < num_changes && !words.empty(); ++change) mutation.apply(words);
  std::string text;
  for (const std::string& word : words) text += word;
  const size_t new_size = std::min(text.size(), max_size);
  std::memcpy(data, text.data(), new_size);
  return new_size;
}
