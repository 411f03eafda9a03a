// The memory managers against naive models over random histories.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "engine/core/rng.h"
#include "engine/serve/kv_pool.h"
#include "engine/serve/request.h"
#include "engine/serve/view.h"
#include "engine/serve/weight_pool.h"

namespace servelab {
namespace {

TEST(KvPool, NoBlockIsEverOwnedTwiceAndNoneIsLost) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    RngStream rng(seed, "kv");
    const std::int64_t total = 1 + static_cast<std::int64_t>(rng.below(300));
    KvPool pool(total, 16);
    std::map<int, std::set<BlockIndex>> naive;
    std::map<int, BlockList> lists;
    std::int64_t peak = 0;
    for (int i = 0; i < 2000; ++i) {
      const int owner = static_cast<int>(rng.below(12));
      BlockList& list = lists[owner];
      if (rng.uniform() < 0.7) {
        const auto want = static_cast<std::int64_t>(rng.below(80));
        const std::int64_t missing = want - list.count;
        const bool grew = pool.grow(&list, want);
        std::int64_t used = 0;
        for (const auto& [o, blocks] : naive) used += static_cast<std::int64_t>(blocks.size());
        EXPECT_EQ(grew, missing <= 0 || missing <= total - used);
      } else {
        pool.release(&list);
      }
      naive[owner] = {list.blocks().begin(), list.blocks().end()};
      ASSERT_EQ(naive[owner].size(), static_cast<std::size_t>(list.count));
      std::set<BlockIndex> all;
      std::size_t owned = 0;
      for (const auto& [o, blocks] : naive) {
        all.insert(blocks.begin(), blocks.end());
        owned += blocks.size();
      }
      ASSERT_EQ(all.size(), owned) << "a block has two owners";
      if (!all.empty()) {
        ASSERT_GE(*all.begin(), 0);
        ASSERT_LT(*all.rbegin(), total);
      }
      ASSERT_EQ(pool.used_blocks(), static_cast<std::int64_t>(owned));
      peak = std::max(peak, pool.used_blocks());
      ASSERT_EQ(pool.peak_used_blocks(), peak);
    }
  }
}

// Where blocks have no ids, only their numbers are kept: the same ones.
TEST(KvPool, WithoutIdsItCountsAsWithThem) {
  KvPool with(40, 16), without(40, 16, false);
  BlockList a, b, x, y;
  for (const std::int64_t count : {3, 20, 7}) {
    EXPECT_EQ(with.grow(&a, count), without.grow(&x, count));
    EXPECT_EQ(with.grow(&b, 2 * count), without.grow(&y, 2 * count));
    EXPECT_EQ(a.count, x.count);
    EXPECT_EQ(b.count, y.count);
    EXPECT_EQ(with.free_blocks(), without.free_blocks());
  }
  EXPECT_TRUE(x.blocks().empty());
  with.release(&a);
  without.release(&x);
  EXPECT_EQ(with.free_blocks(), without.free_blocks());
  EXPECT_EQ(with.peak_used_blocks(), without.peak_used_blocks());
  // Taken now, named later.
  const std::int64_t free = without.free_blocks();
  EXPECT_FALSE(without.take(free + 1));
  EXPECT_TRUE(without.take(2));
  KvPool::give(&y, 2);
  without.release(&y);
  EXPECT_EQ(without.free_blocks(), 40);
}

TEST(KvPool, BlocksForRoundsUp) {
  const KvPool pool(10, 16);
  EXPECT_EQ(pool.blocks_for(0), 0);
  EXPECT_EQ(pool.blocks_for(1), 1);
  EXPECT_EQ(pool.blocks_for(16), 1);
  EXPECT_EQ(pool.blocks_for(17), 2);
}

std::vector<Adapter> some_adapters(int count) {
  std::vector<Adapter> adapters;
  for (int i = 0; i < count; ++i) {
    adapters.push_back(Adapter{"a" + std::to_string(i), ModelId{}, 8, 100 * (1 + i % 3)});
  }
  return adapters;
}

// A plain list for the LRU order and a set for residency.
struct NaivePool {
  std::vector<AdapterId> lru;  // oldest first
  std::map<AdapterId, Residency> state;
};

std::vector<Bytes> bytes_of(const std::vector<Adapter>& adapters) {
  std::vector<Bytes> bytes;
  for (const Adapter& adapter : adapters) bytes.push_back(adapter.bytes);
  return bytes;
}

class AdapterPoolHistory : public ::testing::TestWithParam<AdapterMemory> {};

TEST_P(AdapterPoolHistory, AgreesWithTheNaiveModel) {
  const auto adapters = some_adapters(20);
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    RngStream rng(seed, "adapters");
    KvPool kv(24, 16);
    AdapterPool::Options options;
    options.memory = GetParam();
    options.slots = 6;
    options.slot_bytes = 300;
    options.block_bytes = 64;
    AdapterPool pool(options, bytes_of(adapters), &kv);
    NaivePool naive;
    std::uint64_t step = 0;
    for (int i = 0; i < 3000; ++i) {
      const auto id = static_cast<AdapterId>(static_cast<std::uint32_t>(rng.below(20)));
      const Residency state = naive.state.count(id) ? naive.state[id] : Residency::kAbsent;
      ASSERT_EQ(pool.residency(id), state);
      if (rng.below(3) == 0) {  // whether it is there or not
        const int change = pool.users(id) > 0 && rng.below(2) == 0 ? -1 : 1;
        pool.add_user(id, change);
      }
      switch (rng.below(4)) {
        case 0:
          if (state == Residency::kAbsent && pool.fits(id)) {
            pool.begin_load(id);
            naive.state[id] = Residency::kLoading;
            naive.lru.push_back(id);
          }
          break;
        case 1:
          if (state == Residency::kLoading) {
            pool.finish_load(id);
            naive.state[id] = Residency::kResident;
          }
          break;
        case 2:
          if (state == Residency::kResident) {
            pool.evict(id);
            naive.state[id] = Residency::kAbsent;
            std::erase(naive.lru, id);
          }
          break;
        default:
          if (state != Residency::kAbsent) {
            EXPECT_TRUE(pool.touch(id, ++step));
            EXPECT_FALSE(pool.touch(id, step));
            std::erase(naive.lru, id);
            naive.lru.push_back(id);
          }
      }
      std::vector<AdapterId> order;
      std::int64_t blocks = 0;
      for (AdapterId a = pool.oldest(); a != kBaseModel; a = pool.newer(a)) {
        order.push_back(a);
        blocks += pool.blocks_of(a);
      }
      ASSERT_EQ(order, naive.lru);
      ASSERT_EQ(pool.held(), static_cast<std::int64_t>(naive.lru.size()));
      ASSERT_EQ(kv.used_blocks(), blocks);
      std::int64_t in_use = 0;
      for (std::uint32_t a = 0; a < 20; ++a) {
        if (pool.users(AdapterId{a}) > 0) in_use += pool.blocks_of(AdapterId{a});
      }
      ASSERT_EQ(pool.blocks_in_use(), in_use);
      if (GetParam() == AdapterMemory::kSlots) {
        ASSERT_LE(pool.held(), 6);
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(BothMemories, AdapterPoolHistory,
                         ::testing::Values(AdapterMemory::kSlots, AdapterMemory::kUnified));

TEST(AdapterPool, RefusesWhatBreaksInvariant5) {
  const auto adapters = some_adapters(3);
  AdapterPool::Options options;
  options.slots = 1;
  options.slot_bytes = 300;
  AdapterPool pool(options, bytes_of(adapters), nullptr);
  const AdapterId a{0}, b{1};
  pool.begin_load(a);
  EXPECT_THROW(pool.begin_load(a), InvariantError);  // held already
  EXPECT_THROW(pool.begin_load(b), InvariantError);  // no room
  EXPECT_THROW(pool.evict(a), InvariantError);       // still loading
  pool.finish_load(a);
  pool.pin(a);
  EXPECT_FALSE(pool.evictable(a));
  EXPECT_THROW(pool.evict(a), InvariantError);  // in use
  pool.unpin(a);
  pool.evict(a);
  EXPECT_THROW(pool.evict(a), InvariantError);
}

TEST(FcfsQueue, AgreesWithASet) {
  RngStream rng(1, "queue");
  FcfsQueue queue;
  std::set<RequestId> naive;
  std::uint32_t newest = 0;
  for (int i = 0; i < 20000; ++i) {
    if (naive.empty() || rng.uniform() < 0.52) {
      const RequestId id{newest++};
      queue.insert(id);
      naive.insert(id);
    } else {
      // Mostly from the front, sometimes from the middle, sometimes out and back in.
      auto it = naive.begin();
      if (rng.uniform() < 0.3) std::advance(it, static_cast<long>(rng.below(naive.size())));
      const RequestId id = *it;
      queue.erase(id);
      naive.erase(it);
      if (rng.uniform() < 0.2) {
        queue.insert(id);
        naive.insert(id);
      }
    }
    ASSERT_EQ(queue.size(), naive.size());
    if (i % 97 == 0) {
      ASSERT_TRUE(std::equal(naive.begin(), naive.end(), queue.all().begin(), queue.all().end()));
    }
  }
  EXPECT_THROW(queue.erase(RequestId{newest}), InvariantError);
}

}  // namespace
}  // namespace servelab
