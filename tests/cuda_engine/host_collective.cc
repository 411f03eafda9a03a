// Sums over ranks that are threads here, or processes of this machine, on the streams of
// host_device.h.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>

#include "engine/backend/cuda/collective.h"
#include "engine/core/check.h"
#include "tests/cuda_engine/host_device.h"

namespace servelab::cuda {
namespace {

// A sum that not every rank has finished.
struct Round {
  std::map<int, float*> arrived;  // by rank: sums go in that order, whoever comes first
  int left = 0;                   // ranks that have seen the result
};

struct Ranks {
  int count = 0;
  std::map<std::size_t, Round> rounds;
};

// Runs when the stream does: with everyone's numbers, the last one to come adds them up.
void sum_now(Ranks* ranks, int rank, std::size_t number, float* x, std::size_t count) {
  Round& round = ranks->rounds[number];
  round.arrived[rank] = x;
  const auto all = static_cast<std::size_t>(ranks->count);
  if (round.arrived.size() == all) {
    std::vector<float> total(count);
    for (const auto& [from, values] : round.arrived) {
      for (std::size_t i = 0; i < count; ++i) total[i] += values[i];
    }
    for (const auto& [to, values] : round.arrived) std::copy(total.begin(), total.end(), values);
    host_device::notify();
  }
  host_device::wait_until([&round, all] { return round.arrived.size() == all; });
  if (++round.left == ranks->count) ranks->rounds.erase(number);
}

class HostCollective final : public Collective {
 public:
  HostCollective(std::shared_ptr<Ranks> ranks, int rank) : ranks_(std::move(ranks)), rank_(rank) {}
  void sum(float* x, std::size_t count, cudaStream_t stream) override {
    host_device::enqueue(stream, [ranks = ranks_, rank = rank_, done = done_, x, count] {
      sum_now(ranks.get(), rank, (*done)++, x, count);
    });
  }

 private:
  std::shared_ptr<Ranks> ranks_;
  const int rank_;
  std::shared_ptr<std::size_t> done_ = std::make_shared<std::size_t>(0);
};

// Ranks that are processes: they share a file in memory.
constexpr int kMostRanks = 8;
constexpr std::size_t kMostFloats = std::size_t{1} << 18;  // added up at once

struct SharedMemory {
  std::atomic<int> joined;
  std::atomic<std::uint64_t> written[kMostRanks];  // sums that a rank has given its numbers for
  float numbers[2][kMostRanks][kMostFloats];       // of this sum and of the one before it
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

class SharedCollective final : public Collective {
 public:
  SharedCollective(const std::string& path, const Shard& shard) : shard_(shard) {
    const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (file < 0) throw SpecError(path + ": not the name of a group");
    void* const memory =
        ::mmap(nullptr, sizeof(SharedMemory), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    ::close(file);
    SL_CHECK(memory != MAP_FAILED && shard.ranks <= kMostRanks, "ranks share memory");
    shared_ = static_cast<SharedMemory*>(memory);
    if (++shared_->joined == shard.ranks) ::unlink(path.c_str());
    while (shared_->joined < shard.ranks) ::usleep(1000);
  }
  ~SharedCollective() override { ::munmap(shared_, sizeof(SharedMemory)); }

  void sum(float* x, std::size_t count, cudaStream_t stream) override {
    host_device::enqueue(stream, [this, x, count] {
      for (std::size_t at = 0; at < count; at += kMostFloats) {
        sum_now(x + at, std::min(kMostFloats, count - at));
      }
    });
  }

 private:
  // In the order of ranks on all of them, so that all have the same bits. A rank that writes the
  // sum after the next has seen everybody's numbers for the next, who have then read this one.
  void sum_now(float* x, std::size_t count) {
    const std::uint64_t number = ++sums_;
    auto& numbers = shared_->numbers[number % 2];
    std::copy(x, x + count, numbers[shard_.rank]);
    shared_->written[shard_.rank].store(number, std::memory_order_release);
    host_device::wait_polling([&] {
      for (int rank = 0; rank < shard_.ranks; ++rank) {
        if (shared_->written[rank].load(std::memory_order_acquire) < number) return false;
      }
      return true;
    });
    std::vector<float> total(count);
    for (int rank = 0; rank < shard_.ranks; ++rank) {
      for (std::size_t i = 0; i < count; ++i) total[i] += numbers[rank][i];
    }
    std::copy(total.begin(), total.end(), x);
  }

  const Shard shard_;
  SharedMemory* shared_ = nullptr;
  std::uint64_t sums_ = 0;
};

}  // namespace

std::string name_group() {
  std::string path = "/dev/shm/servelab-ranks-XXXXXX";
  const int file = ::mkstemp(path.data());
  SL_CHECK(file >= 0 && ::ftruncate(file, sizeof(SharedMemory)) == 0, "memory can be shared");
  ::close(file);
  return path;
}

std::unique_ptr<Collective> join_group(const std::string& name, const Shard& shard,
                                       int /*device*/) {
  return std::make_unique<SharedCollective>(name, shard);
}

std::vector<std::unique_ptr<Collective>> make_collectives(int ranks, int /*first_device*/) {
  auto shared = std::make_shared<Ranks>();
  shared->count = ranks;
  std::vector<std::unique_ptr<Collective>> seats;
  for (int i = 0; i < ranks; ++i) seats.push_back(std::make_unique<HostCollective>(shared, i));
  return seats;
}

}  // namespace servelab::cuda
