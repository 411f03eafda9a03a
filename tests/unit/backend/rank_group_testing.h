// Rank 0 and its workers over TCP, the workers as threads of the test and their device the CPU
// engine.
#ifndef SERVELAB_TESTS_UNIT_BACKEND_RANK_GROUP_TESTING_H_
#define SERVELAB_TESTS_UNIT_BACKEND_RANK_GROUP_TESTING_H_

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/backend/ranks/rank_group.h"
#include "engine/backend/ranks/worker.h"
#include "tests/support/device_testing.h"
#include "tests/support/error_of.h"

namespace servelab::ranks {

using test::error_of;

// A port that was free a moment ago.
inline int free_port() {
  const Descriptor socket(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof at;
  ::bind(socket.number(), reinterpret_cast<sockaddr*>(&at), size);
  ::getsockname(socket.number(), reinterpret_cast<sockaddr*>(&at), &size);
  return ntohs(at.sin_port);
}

inline std::unique_ptr<Device> small_device() {
  const ModelConfig model = test::small_model();
  return test::cpu_device(model, *random_weights(model, 7));
}

inline OpenRank open_one() {
  OpenRank open;
  open.model = "small";
  open.plan.limits = test::kSmallLimits;
  return open;
}

struct Failures {
  std::mutex mutex;
  std::vector<std::string> texts;
  Failed note() {
    return [this](const std::string& text) {
      const std::lock_guard lock(mutex);
      texts.push_back(text);
    };
  }
  std::string first() {
    const std::lock_guard lock(mutex);
    return texts.empty() ? "" : texts.front();
  }
};

class RankGroupTest : public ::testing::Test {
 protected:
  ~RankGroupTest() override {
    for (auto& worker : workers_) worker.wait();
  }

  GroupSettings group_settings(int ranks) {
    GroupSettings settings;
    settings.secret = secret_;
    settings.at = {"127.0.0.1", port_};
    settings.ranks = ranks;
    settings.identity = {"this build", "these models"};
    settings.patience = std::chrono::milliseconds(1500);
    settings.on_failure = rank_0_.note();
    return settings;
  }

  WorkerSettings worker_settings(int rank, int ranks) {
    WorkerSettings settings;
    settings.secret = secret_;
    settings.at = {"127.0.0.1", port_};
    settings.rank = rank;
    settings.ranks = ranks;
    settings.identity = {"this build", "these models"};
    settings.patience = std::chrono::milliseconds(1500);
    settings.device.prepare = [](const OpenRank&) {};
    settings.device.name_group = [] { return "a group"; };
    settings.device.open = [](const OpenRank&) { return small_device(); };
    settings.device.part = [](const OpenRank&) { return test::small_model(); };
    settings.stop = &stop_;
    settings.on_failure = worker_.note();
    return settings;
  }

  // Serves in the background: "exit N", or the error.
  void start(const WorkerSettings& settings) {
    workers_.push_back(std::async(std::launch::async, [settings] {
      std::string end;
      const std::string error =
          error_of([&] { end = "exit " + std::to_string(serve_rank(settings)); });
      return error.empty() ? end : error;
    }));
  }
  void start(int rank, int ranks) { start(worker_settings(rank, ranks)); }
  std::string end_of(std::size_t worker) { return workers_[worker].get(); }

  const int port_ = free_port();
  GroupSecret secret_{"a secret of this test", false};
  std::atomic<int> stop_{0};
  Failures rank_0_, worker_;
  std::vector<std::shared_future<std::string>> workers_;
};

}  // namespace servelab::ranks

#endif  // SERVELAB_TESTS_UNIT_BACKEND_RANK_GROUP_TESTING_H_
