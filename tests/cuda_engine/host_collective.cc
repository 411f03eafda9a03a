// Sums over ranks that are threads here, on the streams of host_device.h.
#include <algorithm>
#include <map>

#include "engine/backend/cuda/collective.h"
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

}  // namespace

std::vector<std::unique_ptr<Collective>> make_collectives(int ranks, int /*first_device*/) {
  auto shared = std::make_shared<Ranks>();
  shared->count = ranks;
  std::vector<std::unique_ptr<Collective>> seats;
  for (int i = 0; i < ranks; ++i) seats.push_back(std::make_unique<HostCollective>(shared, i));
  return seats;
}

}  // namespace servelab::cuda
