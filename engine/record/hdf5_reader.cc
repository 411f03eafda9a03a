#include "engine/record/hdf5_reader.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <system_error>

#include "engine/core/check.h"
#include "engine/core/digest.h"
#include "engine/record/atomic_file.h"
#include "engine/record/hdf5_handle.h"

namespace servelab {

struct Hdf5Reader::State {
  std::unique_lock<std::recursive_mutex> lock{hdf5_mutex()};
  std::string path;
  Hdf5Handle file;

  [[noreturn]] void fail(const std::string& what) const {
    const std::string reason = hdf5_error_text();
    throw SpecError(path + ": " + what + (reason.empty() ? "" : " (" + reason + ")") +
                    "; delete the file and run the spec again");
  }
  Hdf5Handle open_attribute(const std::string& object, const std::string& name) const {
    Hdf5Handle attribute(
        H5Aopen_by_name(file.get(), object.c_str(), name.c_str(), H5P_DEFAULT, H5P_DEFAULT),
        H5Aclose);
    if (!attribute.valid()) fail(object + " has no attribute '" + name + "'");
    return attribute;
  }
  Hdf5Handle open_dataset(const std::string& name) const {
    Hdf5Handle set(H5Dopen2(file.get(), name.c_str(), H5P_DEFAULT), H5Dclose);
    if (!set.valid()) fail("has no dataset " + name);
    return set;
  }
  template <class T>
  std::vector<T> read(const std::string& name, hid_t type) const {
    const Hdf5Handle set = open_dataset(name);
    const Hdf5Handle space(H5Dget_space(set.get()), H5Sclose);
    std::vector<T> values(static_cast<std::size_t>(H5Sget_simple_extent_npoints(space.get())));
    if (!values.empty() &&
        H5Dread(set.get(), type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) < 0) {
      fail(name + " cannot be read");
    }
    return values;
  }
};

namespace {

Hdf5Handle text_type() {
  Hdf5Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(type.get(), H5T_VARIABLE);
  H5Tset_cset(type.get(), H5T_CSET_UTF8);
  return type;
}

bool has_class(hid_t attribute, H5T_class_t wanted) {
  const Hdf5Handle type(H5Aget_type(attribute), H5Tclose);
  return H5Tget_class(type.get()) == wanted;
}

herr_t collect_name(hid_t, const char* name, const H5A_info_t*, void* out) {
  static_cast<std::vector<std::string>*>(out)->push_back(name);
  return 0;
}

// External links are not followed: what they lead to has a digest of its own.
herr_t collect_dataset(hid_t group, const char* name, const H5L_info_t* info, void* out) {
  if (info->type != H5L_TYPE_HARD) return 0;
  const Hdf5Handle object(H5Oopen(group, name, H5P_DEFAULT), H5Oclose);
  if (!object.valid()) return -1;
  if (H5Iget_type(object.get()) == H5I_DATASET) {
    static_cast<std::vector<std::string>*>(out)->push_back(std::string("/") + name);
  }
  return 0;
}

// The writer's name for a number's type, empty for any other type.
std::string number_type_text(hid_t type) {
  const bool real = H5Tget_class(type) == H5T_FLOAT;
  if (!real && H5Tget_class(type) != H5T_INTEGER) return "";
  const char* kind = real ? "f" : H5Tget_sign(type) == H5T_SGN_2 ? "i" : "u";
  return std::string("<") + kind + std::to_string(H5Tget_size(type));
}

}  // namespace

Hdf5Reader::Hdf5Reader(std::string path) : state_(std::make_unique<State>()) {
  state_->path = std::move(path);
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  if (::access(state_->path.c_str(), R_OK) != 0) {
    throw SpecError(state_->path + ": cannot be read; run the spec first");
  }
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(state_->path, ignored)) {  // a pipe would be waited for
    throw SpecError(state_->path + ": is no plain file; delete it and run the spec again");
  }
  if (!has_valid_trailer(state_->path)) {
    throw SpecError(
        state_->path +
        ": is not a whole HDF5 file of servelab (truncated or damaged: its checksum does "
        "not match); delete it and run the spec again");
  }
  state_->file = Hdf5Handle(H5Fopen(state_->path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose);
  if (!state_->file.valid()) {
    const std::string reason = hdf5_error_text();
    throw SpecError(state_->path + ": is not a whole HDF5 file (" + reason +
                    "); delete it and run the spec again");
  }
}

Hdf5Reader::~Hdf5Reader() = default;

bool Hdf5Reader::has(const std::string& object) const {
  for (std::size_t slash = object.find('/', 1);; slash = object.find('/', slash + 1)) {
    if (H5Lexists(state_->file.get(), object.substr(0, slash).c_str(), H5P_DEFAULT) <= 0) {
      hdf5_error_text();
      return false;
    }
    if (slash == std::string::npos) return true;
  }
}

std::string Hdf5Reader::text_attribute(const std::string& object, const std::string& name) const {
  const Hdf5Handle attribute = state_->open_attribute(object, name);
  char* data = nullptr;
  const Hdf5Handle type = text_type();
  if (!has_class(attribute.get(), H5T_STRING) || H5Aread(attribute.get(), type.get(), &data) < 0 ||
      data == nullptr) {
    state_->fail("attribute '" + name + "' of " + object + " is not text");
  }
  std::string text = data;
  H5free_memory(data);
  return text;
}

std::int64_t Hdf5Reader::int_attribute(const std::string& object, const std::string& name) const {
  const Hdf5Handle attribute = state_->open_attribute(object, name);
  std::int64_t value = 0;
  if (!has_class(attribute.get(), H5T_INTEGER) ||
      H5Aread(attribute.get(), H5T_NATIVE_INT64, &value) < 0) {
    state_->fail("attribute '" + name + "' of " + object + " is not a whole number");
  }
  return value;
}

std::vector<std::pair<std::string, double>> Hdf5Reader::number_attributes(
    const std::string& object) const {
  std::vector<std::string> names;
  hsize_t position = 0;
  if (H5Aiterate_by_name(state_->file.get(), object.c_str(), H5_INDEX_NAME, H5_ITER_INC, &position,
                         collect_name, &names, H5P_DEFAULT) < 0) {
    state_->fail("has no " + object);
  }
  std::vector<std::pair<std::string, double>> values;
  for (const std::string& name : names) {
    const Hdf5Handle attribute = state_->open_attribute(object, name);
    if (has_class(attribute.get(), H5T_STRING)) continue;
    double value = 0;
    if (H5Aread(attribute.get(), H5T_NATIVE_DOUBLE, &value) < 0) {
      state_->fail("attribute '" + name + "' of " + object + " is not a number");
    }
    values.emplace_back(name, value);
  }
  return values;
}

std::vector<std::int64_t> Hdf5Reader::integers(const std::string& dataset) const {
  return state_->read<std::int64_t>(dataset, H5T_NATIVE_INT64);
}

std::vector<double> Hdf5Reader::numbers(const std::string& dataset) const {
  return state_->read<double>(dataset, H5T_NATIVE_DOUBLE);
}

std::vector<std::string> Hdf5Reader::texts(const std::string& dataset) const {
  const Hdf5Handle type = text_type();
  std::vector<std::string> values;
  for (char* data : state_->read<char*>(dataset, type.get())) {
    values.emplace_back(data == nullptr ? "" : data);
    H5free_memory(data);
  }
  return values;
}

std::string Hdf5Reader::content_digest() const {
  std::vector<std::string> names;
  if (H5Lvisit(state_->file.get(), H5_INDEX_NAME, H5_ITER_INC, collect_dataset, &names) < 0) {
    state_->fail("its objects cannot be listed");
  }
  std::sort(names.begin(), names.end());
  Sha256 sha;
  for (const std::string& name : names) {
    if (name == "/context") continue;
    const Hdf5Handle set = state_->open_dataset(name);
    const Hdf5Handle space(H5Dget_space(set.get()), H5Sclose);
    const Hdf5Handle type(H5Dget_type(set.get()), H5Tclose);
    const bool is_scalar = H5Sget_simple_extent_type(space.get()) == H5S_SCALAR;
    const auto count = static_cast<std::size_t>(H5Sget_simple_extent_npoints(space.get()));
    const std::string number = number_type_text(type.get());
    sha.update(name + '\0' + (number.empty() ? "utf8" : number) + '\0' +
               (is_scalar ? "" : std::to_string(count)) + '\0');
    if (number.empty()) {
      for (const std::string& value : texts(name)) sha.update(is_scalar ? value : value + '\0');
      continue;
    }
    std::vector<char> bytes(count * H5Tget_size(type.get()));
    if (!bytes.empty() &&
        H5Dread(set.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, bytes.data()) < 0) {
      state_->fail(name + " cannot be read");
    }
    sha.update(bytes.data(), bytes.size());
  }
  return sha.hex();
}

}  // namespace servelab
