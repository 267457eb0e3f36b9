// A thread that syncs what was written, a moment later. May depend on: base. Used by the store and the journal.
#pragma once

#include <functional>
#include <memory>

#include "base/status.h"

namespace kvart {

// Thread-safe. In a forked child its thread does not exist: the child may destroy it and must do nothing else with it.
class BackgroundSync {
 public:
  // sync is called delay_ms after the first Dirty since the last call, from a thread that starts with the first one. 0:
  // never.
  BackgroundSync(std::function<Status()> sync, int delay_ms);
  ~BackgroundSync();  // ends the thread; does not sync
  BackgroundSync(const BackgroundSync&) = delete;
  BackgroundSync& operator=(const BackgroundSync&) = delete;

  void Dirty();
  // Syncs now whatever is dirty, and reports the first failure since the last call, the thread's too.
  Status Flush();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvart
