// The registry of adapters: nothing is served that is not what was registered.
#include "engine/model/adapter_registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "engine/cli/adapters_cli.h"
#include "tests/support/error_of.h"
#include "tests/unit/model/weights_testing.h"

namespace servelab {
namespace {

using test::error_of;
using test::TemporaryFolder;
using test::tiny_model;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class AdapterRegistryTest : public ::testing::Test {
 protected:
  std::string save(const std::string& name, int rank, std::uint64_t seed) {
    const std::string path = folder_ / name;
    std::filesystem::remove_all(path);
    save_peft_adapter(*random_adapter(tiny_model(), name, rank, {"q", "v"}, seed), tiny_model(),
                      path);
    return path;
  }
  AdapterRegistry open() { return AdapterRegistry(file(), AdapterRegistry::Open::kCreate); }
  std::string file() const { return folder_ / "adapters.sqlite"; }
  void sql(const std::string& path, const std::string& text) {
    sqlite3* database = nullptr;
    ASSERT_EQ(sqlite3_open(path.c_str(), &database), SQLITE_OK);
    EXPECT_EQ(sqlite3_exec(database, text.c_str(), nullptr, nullptr, nullptr), SQLITE_OK);
    sqlite3_close(database);
  }

  TemporaryFolder folder_;
};

TEST_F(AdapterRegistryTest, AddsListsServesAndRemoves) {
  AdapterRegistry registry = open();
  registry.add("second", save("b", 8, 2), tiny_model());
  const RegisteredAdapter first = registry.add("first", save("a", 4, 1), tiny_model());
  EXPECT_EQ(first.rank, 4);
  EXPECT_EQ(first.model, "tiny");
  EXPECT_EQ(first.bytes, tiny_model().lora_bytes(4, {"q", "v"}));
  EXPECT_EQ(first.parameters, tiny_model().lora_parameters(4, {"q", "v"}));
  EXPECT_EQ(first.sha256.size(), 64u);
  const auto listed = AdapterRegistry(file()).list();
  ASSERT_EQ(listed.size(), 2u);
  EXPECT_EQ(listed[0].name, "first");
  EXPECT_THAT(listed[0].targets, ElementsAre("q", "v"));
  EXPECT_EQ(listed[0].sha256, first.sha256);
  EXPECT_EQ(listed[1].name, "second");
  EXPECT_EQ(registry.load("second", tiny_model())->rank(), 8);
  EXPECT_EQ(AdapterRegistry::problem(first), std::nullopt);
  registry.remove("first");
  EXPECT_EQ(registry.list().size(), 1u);
  EXPECT_THAT(error_of([&] { registry.remove("first"); }), HasSubstr("no adapter 'first'"));
  EXPECT_THAT(error_of([&] { registry.load("secnd", tiny_model()); }), HasSubstr("'second'?"));
}

TEST_F(AdapterRegistryTest, RefusesTakenNamesAndWhatCannotBeServed) {
  AdapterRegistry registry = open();
  registry.add("a", save("a", 4, 1), tiny_model());
  EXPECT_THAT(error_of([&] { registry.add("a", save("b", 4, 2), tiny_model()); }),
              HasSubstr("registered already"));
  EXPECT_THAT(error_of([&] { registry.add("x\ny", folder_ / "a", tiny_model()); }),
              HasSubstr("control character"));
  EXPECT_THAT(error_of([&] { registry.add("\xc3(", folder_ / "a", tiny_model()); }),
              HasSubstr("UTF-8"));
  EXPECT_THAT(error_of([&] { registry.add("c", folder_ / "none", tiny_model()); }),
              HasSubstr("no such folder"));
  ModelConfig other = tiny_model();
  other.hidden = 16;
  EXPECT_THAT(error_of([&] { registry.add("c", folder_ / "a", other); }), HasSubstr("needs"));
  EXPECT_EQ(registry.list().size(), 1u);
}

TEST_F(AdapterRegistryTest, DeletedReplacedAndDamagedAdaptersAreNotServed) {
  AdapterRegistry registry = open();
  const RegisteredAdapter adapter = registry.add("a", save("a", 4, 1), tiny_model());
  const auto error = [&] { return error_of([&] { registry.load("a", tiny_model()); }); };
  save("a", 4, 2);
  EXPECT_THAT(error(), AllOf(HasSubstr("adapter 'a'"), HasSubstr("was replaced")));
  save("a", 4, 1);
  EXPECT_EQ(error(), "");
  std::filesystem::resize_file(folder_ / "a/adapter_model.safetensors", 200);
  EXPECT_THAT(error(), AllOf(HasSubstr("damaged"), HasSubstr("truncated")));
  EXPECT_THAT(*AdapterRegistry::problem(adapter), HasSubstr("damaged"));
  std::filesystem::remove_all(folder_ / "a");
  EXPECT_THAT(error(), HasSubstr("was deleted"));
}

TEST_F(AdapterRegistryTest, OtherFilesAreRefusedInOneLine) {
  const auto error = [](const std::string& path) {
    return error_of([&] { AdapterRegistry(path, AdapterRegistry::Open::kCreate); });
  };
  EXPECT_THAT(error_of([&] { AdapterRegistry(folder_ / "none"); }), HasSubstr("no such registry"));
  EXPECT_THAT(error(folder_.file("text", std::string(2000, 'x'))), HasSubstr("not an SQLite file"));
  sql(folder_ / "other", "CREATE TABLE t (x)");
  EXPECT_THAT(error(folder_ / "other"), HasSubstr("no adapter registry"));
  EXPECT_THAT(error_of([&] { AdapterRegistry(folder_.file("empty", "")); }),
              HasSubstr("no adapter registry"));
  open();
  sql(file(), "PRAGMA user_version = 7");
  EXPECT_THAT(error(file()), AllOf(HasSubstr("version 7"), HasSubstr("newer")));
  EXPECT_THAT(error(folder_ / "missing/x"), HasSubstr("cannot be opened"));
}

TEST_F(AdapterRegistryTest, ARegistryOfAnOlderServelabIsTakenOver) {
  open().add("a", save("a", 4, 1), tiny_model());
  sql(file(), "ALTER TABLE adapters DROP COLUMN parameters; PRAGMA user_version = 1");
  EXPECT_EQ(open().find("a").parameters, 0);  // not counted then
  open().add("b", folder_ / "a", tiny_model());
  EXPECT_EQ(open().find("b").parameters, tiny_model().lora_parameters(4, {"q", "v"}));
}

// More adapters than descriptors: none is held for one; and what then fails says why.
TEST_F(AdapterRegistryTest, DescriptorsAreNotHeld) {
  AdapterRegistry registry = open();
  registry.add("a", save("a", 4, 1), tiny_model());
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const int next = ::dup(STDERR_FILENO);
  ::close(next);
  constexpr int kSpare = 16;
  const rlimit few{static_cast<rlim_t>(next + kSpare), before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  std::vector<std::shared_ptr<const LoraWeights>> kept;
  const std::string problem = error_of([&] {
    for (int i = 0; i < 4 * kSpare; ++i) kept.push_back(registry.load("a", tiny_model()));
  });
  std::vector<int> taken;
  for (int handle = ::dup(STDERR_FILENO); handle >= 0; handle = ::dup(STDERR_FILENO)) {
    taken.push_back(handle);
  }
  const std::string full = error_of([&] { registry.load("a", tiny_model()); });
  for (const int handle : taken) ::close(handle);
  ::setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_EQ(problem, "");
  EXPECT_THAT(full, AllOf(HasSubstr("Too many open files"), ::testing::Not(HasSubstr("damaged"))));
}

TEST_F(AdapterRegistryTest, ProcessesMayAddAtTheSameTime) {
  constexpr int kProcesses = 4;
  constexpr int kEach = 5;
  const std::string path = save("a", 4, 1);
  std::vector<pid_t> children;
  for (int i = 0; i < kProcesses; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      try {
        for (int k = 0; k < kEach; ++k) {
          open().add("p" + std::to_string(i) + "." + std::to_string(k), path, tiny_model());
        }
      } catch (...) {
        ::_exit(1);
      }
      ::_exit(0);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 1;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(open().list().size(), static_cast<std::size_t>(kProcesses * kEach));
}

TEST_F(AdapterRegistryTest, TheCommandAddsVerifiesAndRemoves) {
  AdaptersArguments arguments;
  arguments.database = file();
  const auto run = [&](const std::string& action, const std::string& name = "",
                       const std::string& from = "", const std::string& model = "") {
    arguments.action = action;
    arguments.name = name;
    arguments.folder = from;
    arguments.model = model;
    return adapters_command(arguments);
  };
  const std::string llama = test::golden_folder("llama");
  EXPECT_EQ(run("add", "r4", llama + "/r4", llama + "/model"), 0);
  EXPECT_EQ(run("add", "r64", llama + "/r64", llama + "/model"), 0);
  EXPECT_EQ(run("list"), 0);
  EXPECT_EQ(run("verify"), 0);
  sql(file(), "UPDATE adapters SET path = '/nowhere' WHERE name = 'r64'");
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(run("verify"), 1);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("servelab: error: adapter 'r64'"), HasSubstr("was deleted")));
  EXPECT_EQ(run("verify", "r4"), 0);
  EXPECT_EQ(run("remove", "r64"), 0);
  EXPECT_EQ(run("verify"), 0);
  EXPECT_THAT(error_of([&] { run("ad"); }), HasSubstr("'add'?"));
  EXPECT_THAT(error_of([&] { run("add", "x"); }), HasSubstr("needs NAME FOLDER --model"));
  EXPECT_THAT(error_of([&] { run("list", "x"); }), HasSubstr("unexpected 'x'"));
}

}  // namespace
}  // namespace servelab
