// Cores as Linux describes them in sysfs, and the limits that cgroups set. May depend on: cpu.h.
#include <algorithm>
#include <charconv>
#include <cstdio>

#include "base/cpu.h"

namespace kvart {
namespace {

constexpr int kMaxCpus = 8192;

// A small file's text without the white space at its end; empty when it cannot be read.
std::string ReadText(const std::string& path) {
  std::string text;
  if (FILE* f = std::fopen(path.c_str(), "re")) {
    char buffer[4096];
    for (size_t n; (n = std::fread(buffer, 1, sizeof buffer, f)) > 0;) text.append(buffer, n);
    std::fclose(f);
  }
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

// The number that text begins with, or -1.
double ParseNumber(std::string_view text) {
  int64_t value = -1;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return static_cast<double>(value);
}

// "quota period" of v2, such as "150000 100000" or "max 100000", or the two numbers of v1: CPUs, 0 for no limit.
double Quota(double quota, double period) {
  return quota > 0 && period > 0 ? quota / period : 0;
}
double ReadQuota(const std::string& folder) {
  const std::string both = ReadText(folder + "/cpu.max");
  if (const size_t space = both.find(' '); space != std::string::npos) {
    return Quota(ParseNumber(both), ParseNumber(std::string_view(both).substr(space + 1)));
  }
  return Quota(ParseNumber(ReadText(folder + "/cpu.cfs_quota_us")),
               ParseNumber(ReadText(folder + "/cpu.cfs_period_us")));
}

// The tightest limit of this process's cgroup and of all that it lies in, under a mount of the hierarchy. A container
// often sees its own cgroup as the root of the mount, whatever its path.
double TightestQuota(const std::string& mount, std::string path) {
  double tightest = 0;
  while (true) {
    const double quota = ReadQuota(mount + path);
    if (quota > 0 && (tightest == 0 || quota < tightest)) tightest = quota;
    if (path.empty()) return tightest;
    path.resize(std::min(path.find_last_of('/'), path.size() - 1));
  }
}

bool HasWord(std::string_view list, std::string_view word) {
  for (size_t at = 0; at <= list.size();) {
    const size_t end = std::min(list.find(',', at), list.size());
    if (list.substr(at, end - at) == word) return true;
    at = end + 1;
  }
  return false;
}

double CgroupQuota(const std::string& root) {
  double tightest = 0;
  const auto look = [&](const char* mount, const std::string& path) {
    const double quota = TightestQuota(root + "/sys/fs/cgroup" + mount, path);
    if (quota > 0 && (tightest == 0 || quota < tightest)) tightest = quota;
  };
  const std::string lines = ReadText(root + "/proc/self/cgroup");
  for (size_t at = 0; at < lines.size();) {  // "0::/path" of v2, "3:cpu,cpuacct:/path" of v1
    const size_t end = std::min(lines.find('\n', at), lines.size());
    const std::string line = lines.substr(at, end - at);
    at = end + 1;
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    while (!path.empty() && path.back() == '/') path.pop_back();
    if (controllers.empty()) {
      look("", path);
      look("/unified", path);
    } else if (HasWord(controllers, "cpu")) {
      look("/cpu", path);
      look("/cpu,cpuacct", path);
    }
  }
  if (lines.empty()) look("", "");  // no /proc: the mount itself may still tell
  return tightest;
}

// Sets cpus' speeds from one of their files; false, and all as they were, unless every CPU has it.
bool ReadSpeeds(const std::string& folder, const char* file, std::vector<LogicalCpu>* cpus) {
  std::vector<double> values;
  for (const LogicalCpu& cpu : *cpus) {
    values.push_back(ParseNumber(ReadText(folder + "/cpu" + std::to_string(cpu.id) + file)));
    if (values.back() <= 0) return false;
  }
  const double most = values.empty() ? 1 : *std::max_element(values.begin(), values.end());
  for (size_t i = 0; i < values.size(); ++i) (*cpus)[i].speed = values[i] / most;
  return true;
}

size_t LargestCache(const std::string& folder) {
  double most = 0;
  for (int index = 0; index < 8; ++index) {
    const std::string text = ReadText(folder + "/cpu0/cache/index" + std::to_string(index) + "/size");  // "307200K"
    const double unit = text.ends_with('K') ? 1024.0 : text.ends_with('M') ? 1048576.0 : 1.0;
    most = std::max(most, ParseNumber(text) * unit);
  }
  return static_cast<size_t>(most);
}

}  // namespace

std::vector<int> ParseCpuList(std::string_view text) {
  std::vector<int> cpus;
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find(','));
    text.remove_prefix(std::min(part.size() + 1, text.size()));
    int first = -1, last = -1;
    const char* end = part.data() + part.size();
    const auto head = std::from_chars(part.data(), end, first);
    if (head.ec != std::errc() || first < 0) continue;
    last = first;
    if (head.ptr != end && *head.ptr == '-') std::from_chars(head.ptr + 1, end, last);
    for (int cpu = first; cpu <= std::min(last, kMaxCpus - 1); ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

std::string FormatCpuList(std::vector<int> cpus) {
  std::sort(cpus.begin(), cpus.end());
  std::string text;
  for (size_t i = 0; i < cpus.size();) {
    size_t end = i + 1;
    while (end < cpus.size() && cpus[end] == cpus[end - 1] + 1) ++end;
    text += (text.empty() ? "" : ",") + std::to_string(cpus[i]);
    if (end - i > 1) text += "-" + std::to_string(cpus[end - 1]);
    i = end;
  }
  return text;
}

CpuTopology ReadCpuTopology(const std::string& root) {
  CpuTopology topology;
  const std::string folder = root + "/sys/devices/system/cpu";
  for (const int id : ParseCpuList(ReadText(folder + "/online"))) {
    LogicalCpu cpu;
    cpu.id = cpu.core = id;
    const std::string siblings = folder + "/cpu" + std::to_string(id) + "/topology/";
    for (const char* file : {"core_cpus_list", "thread_siblings_list"}) {  // the new and the old name
      for (const int sibling : ParseCpuList(ReadText(siblings + file))) cpu.core = std::min(cpu.core, sibling);
    }
    topology.cpus.push_back(cpu);
  }
  const std::string nodes = root + "/sys/devices/system/node";
  for (const int node : ParseCpuList(ReadText(nodes + "/online"))) {
    for (const int id : ParseCpuList(ReadText(nodes + "/node" + std::to_string(node) + "/cpulist"))) {
      for (LogicalCpu& cpu : topology.cpus) {
        if (cpu.id == id) cpu.node = node;
      }
    }
  }
  // A core joins when it does at least half of the fastest one's work: its last piece of a matrix then ends hardly
  // after the others' (work is claimed in small pieces), and it brings more than its barrier costs. That takes a
  // phone's big and middle cores (cpu_capacity 1024, 900) and leaves its little ones (200 … 400), which the rest of the
  // system needs. Where the kernel measures no capacity, frequency has to do; it flatters little cores, which also do
  // less a cycle.
  constexpr double kSlowCapacity = 0.5, kSlowFrequency = 0.75;
  if (ReadSpeeds(folder, "/cpu_capacity", &topology.cpus)) {
    topology.slow_below = kSlowCapacity;
  } else if (ReadSpeeds(folder, "/cpufreq/cpuinfo_max_freq", &topology.cpus)) {
    topology.slow_below = kSlowFrequency;
  }
  topology.quota = CgroupQuota(root);
  topology.cache_bytes = LargestCache(folder);
  return topology;
}

}  // namespace kvart
