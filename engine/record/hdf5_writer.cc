#include "engine/record/hdf5_writer.h"

#include <libdeflate.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>

#include "engine/core/check.h"
#include "engine/core/digest.h"
#include "engine/record/atomic_file.h"
#include "engine/record/hdf5_handle.h"

namespace servelab {
namespace {

static_assert(std::endian::native == std::endian::little, "digests are over little-endian bytes");

constexpr std::size_t kCompressFrom = 4096;  // entries
constexpr std::size_t kChunkEntries = 65536;
constexpr int kDeflateLevel = 1;
constexpr const char* kContext = "/context";  // the one dataset outside the digest
constexpr std::size_t kGrowBytes = std::size_t{4} << 20;

hid_t file_type(ElementType type) {
  if (type.real) return H5T_IEEE_F64LE;
  switch (type.bytes) {
    case 1:
      return type.is_signed ? H5T_STD_I8LE : H5T_STD_U8LE;
    case 2:
      return type.is_signed ? H5T_STD_I16LE : H5T_STD_U16LE;
    case 4:
      return type.is_signed ? H5T_STD_I32LE : H5T_STD_U32LE;
    default:
      return type.is_signed ? H5T_STD_I64LE : H5T_STD_U64LE;
  }
}

std::string type_text(ElementType type) {
  return std::string("<") +
         (type.real        ? "f"
          : type.is_signed ? "i"
                           : "u") +
         std::to_string(type.bytes);
}

Hdf5Handle utf8_type() {
  Hdf5Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(type.get(), H5T_VARIABLE);
  H5Tset_cset(type.get(), H5T_CSET_UTF8);
  return type;
}

Hdf5Handle scalar_space() { return {H5Screate(H5S_SCALAR), H5Sclose}; }
Hdf5Handle list_space(std::size_t count) {
  const hsize_t size = count;
  return {H5Screate_simple(1, &size, nullptr), H5Sclose};
}

// Makes chunks as HDF5's filters would, shuffled and deflated, in half of their time.
class ChunkPacker {
 public:
  ChunkPacker() : deflate_(libdeflate_alloc_compressor(kDeflateLevel), libdeflate_free_compressor) {
    SL_CHECK(deflate_ != nullptr, "no memory to compress with");
  }

  // `count` values of `bytes` each, in a chunk that has room for `room` of them. Valid until the
  // next call.
  std::span<const std::byte> pack(const std::byte* values, std::size_t count, std::size_t bytes,
                                  std::size_t room) {
    shuffled_.assign(room * bytes, std::byte{0});
    for (std::size_t b = 0; b < bytes; ++b) {
      std::byte* const to = shuffled_.data() + b * room;
      for (std::size_t i = 0; i < count; ++i) to[i] = values[i * bytes + b];
    }
    packed_.resize(libdeflate_zlib_compress_bound(deflate_.get(), shuffled_.size()));
    const std::size_t size = libdeflate_zlib_compress(
        deflate_.get(), shuffled_.data(), shuffled_.size(), packed_.data(), packed_.size());
    SL_CHECK(size > 0, "a chunk fits the bound of its compressor");
    return {packed_.data(), size};
  }

 private:
  std::unique_ptr<libdeflate_compressor, void (*)(libdeflate_compressor*)> deflate_;
  std::vector<std::byte> shuffled_, packed_;  // reused
};

}  // namespace

std::recursive_mutex& hdf5_mutex() {
  static std::recursive_mutex mutex;
  return mutex;
}

std::string hdf5_error_text() {
  std::string text;
  const auto keep = [](unsigned, const H5E_error2_t* error, void* out) -> herr_t {
    if (error->desc != nullptr) *static_cast<std::string*>(out) = error->desc;
    return 0;
  };
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_DOWNWARD, keep, &text);
  H5Eclear2(H5E_DEFAULT);
  return text;
}

struct Hdf5Writer::State {
  std::unique_lock<std::recursive_mutex> lock{hdf5_mutex()};
  std::string name;
  Hdf5Handle file;
  std::map<std::string, bool> groups;
  Sha256 sha;
  ChunkPacker packer;
  std::string last_path;
  bool digest_taken = false;

  void require(bool ok, const std::string& what) const {
    if (!ok) throw SpecError(name + ": HDF5 cannot write " + what + ": " + hdf5_error_text());
  }

  // Creates the groups of `path` (without its last part), so that none carries a time stamp.
  void make_groups(const std::string& path) {
    for (std::size_t slash = path.find('/', 1); slash != std::string::npos;
         slash = path.find('/', slash + 1)) {
      make_group(path.substr(0, slash));
    }
  }
  void make_group(const std::string& path) {
    if (path == "/" || !groups.emplace(path, true).second) return;
    const Hdf5Handle plist(H5Pcreate(H5P_GROUP_CREATE), H5Pclose);
    H5Pset_obj_track_times(plist.get(), false);
    const Hdf5Handle group(
        H5Gcreate2(file.get(), path.c_str(), H5P_DEFAULT, plist.get(), H5P_DEFAULT), H5Gclose);
    require(group.valid(), path);
  }

  void put_attribute(hid_t object, const std::string& attribute, hid_t type, hid_t space,
                     const void* data) {
    const Hdf5Handle handle(
        H5Acreate2(object, attribute.c_str(), type, space, H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
    require(handle.valid() && H5Awrite(handle.get(), type, data) >= 0, "attribute " + attribute);
  }
  void put_text(hid_t object, const std::string& attribute, std::string_view value) {
    const std::string terminated(value);
    const char* data = terminated.c_str();
    put_attribute(object, attribute, utf8_type().get(), scalar_space().get(), &data);
  }

  bool write_chunks(hid_t set, std::size_t bytes, std::size_t count, const void* data) {
    const std::size_t room = std::min(count, kChunkEntries);
    const auto* values = static_cast<const std::byte*>(data);
    for (std::size_t first = 0; first < count; first += room) {
      const std::span<const std::byte> chunk =
          packer.pack(values + first * bytes, std::min(room, count - first), bytes, room);
      const hsize_t offset = first;
      if (H5Dwrite_chunk(set, H5P_DEFAULT, 0, &offset, chunk.size(), chunk.data()) < 0)
        return false;
    }
    return true;
  }

  void create(const std::string& path, hid_t type, hid_t space, std::size_t count, bool compress,
              const void* data, const DatasetText& text) {
    make_groups(path);
    const Hdf5Handle plist(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    H5Pset_obj_track_times(plist.get(), false);
    if (compress && count >= kCompressFrom) {
      const hsize_t chunk = std::min(count, kChunkEntries);
      H5Pset_chunk(plist.get(), 1, &chunk);
      H5Pset_shuffle(plist.get());
      H5Pset_deflate(plist.get(), kDeflateLevel);
    }
    const Hdf5Handle set(
        H5Dcreate2(file.get(), path.c_str(), type, space, H5P_DEFAULT, plist.get(), H5P_DEFAULT),
        H5Dclose);
    require(set.valid(), path);
    if (compress && count >= kCompressFrom) {
      require(write_chunks(set.get(), H5Tget_size(type), count, data), path);
    } else if (count > 0) {
      require(H5Dwrite(set.get(), type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) >= 0, path);
    }
    put_text(set.get(), "units", text.units);
    put_text(set.get(), "description", text.description);
    if (!text.prometheus.empty()) put_text(set.get(), "prometheus", text.prometheus);
    if (!text.codes.empty()) {
      std::vector<const char*> names(text.codes.begin(), text.codes.end());
      put_attribute(set.get(), "codes", utf8_type().get(), list_space(names.size()).get(),
                    names.data());
    }
  }
};

Hdf5Writer::Hdf5Writer(std::string name) : state_(std::make_unique<State>()) {
  state_->name = std::move(name);
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  const Hdf5Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  H5Pset_fapl_core(access.get(), kGrowBytes, false);
  const Hdf5Handle create(H5Pcreate(H5P_FILE_CREATE), H5Pclose);
  H5Pset_obj_track_times(create.get(), false);
  state_->file = Hdf5Handle(
      H5Fcreate(state_->name.c_str(), H5F_ACC_TRUNC, create.get(), access.get()), H5Fclose);
  state_->require(state_->file.valid(), "the file");
}

Hdf5Writer::~Hdf5Writer() = default;

void Hdf5Writer::digest(const std::string& path, const std::string& type,
                        const std::string& shape) {
  State& s = *state_;
  SL_CHECK(s.last_path < path, "datasets are written in path order: " + path);
  SL_CHECK(!s.digest_taken, "a dataset after the digest: " + path);
  s.last_path = path;
  s.sha.update(path + '\0' + type + '\0' + shape + '\0');
}

void Hdf5Writer::numbers(const std::string& path, const void* data, std::size_t count,
                         ElementType type, const DatasetText& text) {
  digest(path, type_text(type), std::to_string(count));
  if (count > 0) state_->sha.update(data, count * static_cast<std::size_t>(type.bytes));
  state_->create(path, file_type(type), list_space(count).get(), count, true, data, text);
}

void Hdf5Writer::texts(const std::string& path, const std::vector<std::string>& values,
                       const DatasetText& text) {
  digest(path, "utf8", std::to_string(values.size()));
  std::vector<const char*> data;
  for (const std::string& value : values) {
    state_->sha.update(value + '\0');
    data.push_back(value.c_str());
  }
  state_->create(path, utf8_type().get(), list_space(values.size()).get(), values.size(), false,
                 data.data(), text);
}

void Hdf5Writer::text(const std::string& path, const std::string& value, const DatasetText& text) {
  if (path != kContext) {
    digest(path, "utf8", "");
    state_->sha.update(value);
  }
  const char* data = value.c_str();
  state_->create(path, utf8_type().get(), scalar_space().get(), 1, false, &data, text);
}

void Hdf5Writer::attribute(const std::string& group, const std::string& name,
                           const std::string& value) {
  state_->make_groups(group);
  state_->make_group(group);
  const Hdf5Handle object(H5Oopen(state_->file.get(), group.c_str(), H5P_DEFAULT), H5Oclose);
  state_->put_text(object.get(), name, value);
}

void Hdf5Writer::attribute(const std::string& group, const std::string& name, std::int64_t value) {
  state_->make_groups(group);
  state_->make_group(group);
  const Hdf5Handle object(H5Oopen(state_->file.get(), group.c_str(), H5P_DEFAULT), H5Oclose);
  state_->put_attribute(object.get(), name, H5T_STD_I64LE, scalar_space().get(), &value);
}

void Hdf5Writer::attribute(const std::string& group, const std::string& name, double value) {
  state_->make_groups(group);
  state_->make_group(group);
  const Hdf5Handle object(H5Oopen(state_->file.get(), group.c_str(), H5P_DEFAULT), H5Oclose);
  state_->put_attribute(object.get(), name, H5T_IEEE_F64LE, scalar_space().get(), &value);
}

void Hdf5Writer::external_link(const std::string& path, const std::string& file) {
  state_->make_groups(path);
  state_->require(H5Lcreate_external(file.c_str(), "/", state_->file.get(), path.c_str(),
                                     H5P_DEFAULT, H5P_DEFAULT) >= 0,
                  "link " + path);
}

std::string Hdf5Writer::content_digest() {
  SL_CHECK(!state_->digest_taken, "the digest is taken once");
  state_->digest_taken = true;
  return state_->sha.hex();
}

std::vector<std::byte> Hdf5Writer::finish() {
  State& s = *state_;
  s.require(H5Fflush(s.file.get(), H5F_SCOPE_GLOBAL) >= 0, "the file");
  const ssize_t size = H5Fget_file_image(s.file.get(), nullptr, 0);
  s.require(size > 0, "the file");
  std::vector<std::byte> image(static_cast<std::size_t>(size));
  s.require(H5Fget_file_image(s.file.get(), image.data(), image.size()) == size, "the file");
  for (const char c : checksum_trailer(image)) image.push_back(static_cast<std::byte>(c));
  return image;
}

}  // namespace servelab
