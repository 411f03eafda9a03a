#include "engine/model/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <tuple>

#include "engine/core/check.h"
#include "engine/model/json_file.h"

namespace servelab {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data are little-endian");

using Bytes64 = std::uint64_t;
using Header = nlohmann::json;

constexpr std::size_t kLengthBytes = 8;
constexpr Bytes64 kLongestHeader = 100'000'000;  // the reference implementation's limit
constexpr std::size_t kMostDimensions = 8;

const std::map<std::string, int>& type_bytes() {
  static const std::map<std::string, int> kBytes = {
      {"BF16", 2},    {"BOOL", 1},    {"C64", 8},     {"F16", 2}, {"F32", 4}, {"F64", 8},
      {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1}, {"I16", 2}, {"I32", 4}, {"I64", 8},
      {"I8", 1},      {"U16", 2},     {"U32", 4},     {"U64", 8}, {"U8", 1}};
  return kBytes;
}

struct Range {
  Bytes64 begin = 0;
  Bytes64 end = 0;
  const std::string* name = nullptr;
};

// One entry of a header, checked by itself.
class EntryParser {
 public:
  EntryParser(const std::string& file, const std::string& name) : where_(file), name_(name) {}

  Range parse(const Header& json, Bytes64 data_bytes, StoredTensor* out) const {
    if (!json.is_object()) fail("its entry is no JSON object");
    for (const auto& [key, value] : json.items()) {
      if (key != "dtype" && key != "shape" && key != "data_offsets") {
        fail("unknown key '" + key + "' in its entry; " +
             suggest(key, {"dtype", "shape", "data_offsets"}));
      }
    }
    const auto type = json.find("dtype");
    if (type == json.end() || !type->is_string()) fail("'dtype' is missing or is no text");
    out->type = type->get<std::string>();
    const auto width = type_bytes().find(out->type);
    if (width == type_bytes().end()) {
      std::vector<std::string> known;
      for (const auto& [key, bytes] : type_bytes()) known.push_back(key);
      fail("unknown dtype '" + out->type.substr(0, 40) + "'; " + suggest(out->type, known));
    }
    const std::vector<Bytes64> offsets = numbers(json, "data_offsets");
    if (offsets.size() != 2) fail("'data_offsets' must hold two numbers");
    const Range range{offsets[0], offsets[1], &name_};
    if (range.begin > range.end || range.end > data_bytes) {
      fail("its data_offsets [" + std::to_string(range.begin) + ", " + std::to_string(range.end) +
           "] are outside of the file's " + std::to_string(data_bytes) +
           " bytes of data; is the file truncated?");
    }
    const Bytes64 needed = bytes_needed(json, static_cast<Bytes64>(width->second), out);
    if (needed != range.end - range.begin) {
      fail("shape " + out->shape_text() + " of " + out->type + " needs " + std::to_string(needed) +
           " bytes, but its data_offsets span " + std::to_string(range.end - range.begin));
    }
    return range;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw SpecError(where_ + ": tensor '" + name_ + "': " + what);
  }

  std::vector<Bytes64> numbers(const Header& json, const char* key) const {
    const auto list = json.find(key);
    if (list == json.end() || !list->is_array() || list->size() > kMostDimensions) {
      fail("'" + std::string(key) + "' must be a list of at most 8 whole numbers");
    }
    std::vector<Bytes64> values;
    for (const Header& item : *list) {
      if (!item.is_number_unsigned()) {
        fail("'" + std::string(key) + "' must hold whole numbers from 0");
      }
      values.push_back(item.get<Bytes64>());
    }
    return values;
  }

  Bytes64 bytes_needed(const Header& json, Bytes64 width, StoredTensor* out) const {
    Bytes64 bytes = width;
    for (const Bytes64 extent : numbers(json, "shape")) {
      if (extent > static_cast<Bytes64>(std::numeric_limits<std::int64_t>::max()) ||
          __builtin_mul_overflow(bytes, extent, &bytes)) {
        fail("its shape overflows 64 bits");
      }
      out->shape.push_back(static_cast<std::int64_t>(extent));
    }
    return bytes;
  }

  const std::string& where_;
  const std::string& name_;
};

// Tensors must fill the data without gap or overlap.
void check_coverage(std::vector<Range> ranges, Bytes64 data_bytes, const std::string& file) {
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
    return std::tie(a.begin, a.end, *a.name) < std::tie(b.begin, b.end, *b.name);
  });
  Bytes64 at = 0;
  for (const Range& range : ranges) {
    if (range.begin != at) {
      throw SpecError(file + ": tensor '" + *range.name + "': its data start at byte " +
                      std::to_string(range.begin) +
                      (range.begin < at ? ", overlapping" : ", after a gap behind") +
                      " what ends at byte " + std::to_string(at));
    }
    at = range.end;
  }
  if (at != data_bytes) {
    throw SpecError(file + ": " + std::to_string(data_bytes - at) +
                    " bytes at the end belong to no tensor");
  }
}

void check_metadata(const Header& json, const std::string& file) {
  bool fine = json.is_object();
  if (fine) {
    for (const Header& value : json) fine = fine && value.is_string();
  }
  if (!fine) throw SpecError(file + ": '__metadata__' must be a map of texts");
}

}  // namespace

std::string StoredTensor::shape_text() const {
  std::string text;
  for (const std::int64_t extent : shape) {
    text += (text.empty() ? "" : ", ") + std::to_string(extent);
  }
  return "[" + text + "]";
}

std::map<std::string, StoredTensor> parse_safetensors(std::span<const std::byte> bytes,
                                                      const std::string& name) {
  Bytes64 length = 0;
  if (bytes.size() < kLengthBytes) {
    throw SpecError(name + ": holds " + std::to_string(bytes.size()) +
                    " bytes, too few for a safetensors file; is it truncated?");
  }
  std::memcpy(&length, bytes.data(), kLengthBytes);
  if (length > kLongestHeader || length > bytes.size() - kLengthBytes) {
    throw SpecError(name + ": its header claims " + std::to_string(length) + " bytes, but " +
                    std::to_string(std::min<Bytes64>(bytes.size() - kLengthBytes, kLongestHeader)) +
                    " are there or allowed; truncated, or not a safetensors file");
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes,
                              static_cast<std::size_t>(length));
  const Header header = parse_json<Header>(text, name + " (header)");
  if (!header.is_object()) throw SpecError(name + ": its header is no JSON object");
  const auto data = bytes.subspan(kLengthBytes + static_cast<std::size_t>(length));
  std::map<std::string, StoredTensor> tensors;
  std::vector<Range> ranges;
  for (const auto& [key, value] : header.items()) {
    if (key == "__metadata__") {
      check_metadata(value, name);
      continue;
    }
    const auto place = tensors.emplace(key, StoredTensor{}).first;
    StoredTensor& stored = place->second;
    const Range range = EntryParser(name, place->first).parse(value, data.size(), &stored);
    stored.bytes = data.subspan(static_cast<std::size_t>(range.begin),
                                static_cast<std::size_t>(range.end - range.begin));
    ranges.push_back(range);
  }
  check_coverage(std::move(ranges), data.size(), name);
  return tensors;
}

std::string safetensors_bytes(const std::vector<std::pair<std::string, Tensor>>& tensors,
                              bool one_row_is_vector) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  header["__metadata__"] = {{"format", "pt"}};
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    SL_CHECK(!header.contains(name), "tensors have different names");
    const std::size_t bytes = static_cast<std::size_t>(tensor.rows) *
                              static_cast<std::size_t>(tensor.columns) *
                              kernels::bytes_of(tensor.type);
    const char* type = tensor.type == kernels::DType::kF32    ? "F32"
                       : tensor.type == kernels::DType::kBf16 ? "BF16"
                                                              : "F16";
    auto shape = nlohmann::ordered_json::array();
    if (!one_row_is_vector || tensor.rows != 1) shape.push_back(tensor.rows);
    shape.push_back(tensor.columns);
    header[name] = {
        {"dtype", type}, {"shape", shape}, {"data_offsets", {data.size(), data.size() + bytes}}};
    data.append(static_cast<const char*>(tensor.data), bytes);
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const Bytes64 length = text.size();
  std::string file(kLengthBytes, '\0');
  std::memcpy(file.data(), &length, kLengthBytes);
  return file + text + data;
}

}  // namespace servelab
