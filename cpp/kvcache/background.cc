#include "kvcache/background.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "base/fs.h"

namespace kvart {

struct BackgroundSync::State {
  std::function<Status()> sync;
  int delay_ms;
  int64_t process;
  std::mutex mutex;
  std::condition_variable wake;
  bool dirty = false, syncing = false, stop = false, started = false;
  Status failure;  // the first one that nobody was told
  std::thread thread;

  // Called and returns with the lock held; syncs without it.
  void SyncNow(std::unique_lock<std::mutex>& lock) {
    dirty = false;
    syncing = true;
    lock.unlock();
    Status status = sync();
    lock.lock();
    syncing = false;
    wake.notify_all();
    if (status.ok()) return;
    dirty = true;  // it is tried again
    if (failure.ok()) failure = std::move(status);
  }

  void Run() {
    std::unique_lock<std::mutex> lock(mutex);
    while (true) {
      wake.wait(lock, [this] { return stop || dirty; });
      if (wake.wait_for(lock, std::chrono::milliseconds(delay_ms), [this] { return stop; })) return;
      if (dirty && !syncing) SyncNow(lock);
    }
  }
};

BackgroundSync::BackgroundSync(std::function<Status()> sync, int delay_ms) : state_(std::make_unique<State>()) {
  state_->sync = std::move(sync);
  state_->delay_ms = delay_ms;
  state_->process = ProcessId();
}

BackgroundSync::~BackgroundSync() {
  if (state_->process != ProcessId()) {
    (void)state_.release();  // a thread that is not there can't be joined, and its condition may look waited for
    return;
  }
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->stop = true;
  }
  state_->wake.notify_all();
  if (state_->thread.joinable()) state_->thread.join();
}

void BackgroundSync::Dirty() {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  if (state_->dirty) return;
  state_->dirty = true;
  if (state_->delay_ms <= 0) return;
  if (!state_->started) {
    state_->started = true;
    try {
      state_->thread = std::thread([state = state_.get()] { state->Run(); });
    } catch (const std::system_error&) {
      // No thread to be had: what is dirty waits for Flush.
    }
  }
  state_->wake.notify_all();
}

Status BackgroundSync::Flush() {
  std::unique_lock<std::mutex> lock(state_->mutex);
  state_->wake.wait(lock, [this] { return !state_->syncing; });  // what that one took up counts too
  if (state_->dirty) state_->SyncNow(lock);
  return std::exchange(state_->failure, Status::Ok());
}

}  // namespace kvart
