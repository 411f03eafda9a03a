#include "engine/record/chunk_compressor.h"

#include <zlib.h>

#include "engine/core/check.h"

namespace servelab {
namespace {

constexpr int kWindowBits = 15;
constexpr int kMostMemory = 9;

// Byte b of entry i goes to b * entries + i.
void shuffle(const std::byte* data, std::size_t there, std::size_t entries, std::size_t width,
             std::byte* out) {
  for (std::size_t b = 0; b < width; ++b, out += entries) {
    for (std::size_t i = 0; i < there; ++i) out[i] = data[i * width + b];
  }
}

}  // namespace

struct ChunkCompressor::State {
  z_stream stream{};
  State() {
    SL_CHECK(deflateInit2(&stream, kLevel, Z_DEFLATED, kWindowBits, kMostMemory, Z_RLE) == Z_OK,
             "zlib unavailable");
  }
  ~State() { deflateEnd(&stream); }
};

ChunkCompressor::ChunkCompressor() : state_(std::make_unique<State>()) {}
ChunkCompressor::~ChunkCompressor() = default;

std::span<const std::byte> ChunkCompressor::compress(const void* data, std::size_t there,
                                                     std::size_t entries, std::size_t width) {
  SL_CHECK(there <= entries, "a chunk holds its entries");
  shuffled_.assign(entries * width, std::byte{});
  shuffle(static_cast<const std::byte*>(data), there, entries, width, shuffled_.data());
  z_stream& z = state_->stream;
  deflated_.resize(deflateBound(&z, shuffled_.size()));
  z.next_in = reinterpret_cast<Bytef*>(shuffled_.data());
  z.avail_in = static_cast<uInt>(shuffled_.size());
  z.next_out = reinterpret_cast<Bytef*>(deflated_.data());
  z.avail_out = static_cast<uInt>(deflated_.size());
  SL_CHECK(deflate(&z, Z_FINISH) == Z_STREAM_END, "zlib has room for every chunk");
  const std::size_t size = deflated_.size() - z.avail_out;
  deflateReset(&z);
  return {deflated_.data(), size};
}

}  // namespace servelab
