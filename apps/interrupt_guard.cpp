#include "interrupt_guard.h"

namespace quern {
namespace {

std::atomic<bool> interrupted = false;
void on_signal(int) { interrupted = true; }

}  // namespace

InterruptGuard::InterruptGuard(std::initializer_list<int> signals) {
  interrupted = false;
  for (const int signal : signals) {
    struct sigaction before = {};
    sigaction(signal, nullptr, &before);
    if (before.sa_handler == SIG_IGN) continue;
    struct sigaction action = {};
    action.sa_handler = on_signal;
    sigemptyset(&action.sa_mask);
    sigaction(signal, &action, nullptr);
    before_.emplace_back(signal, before);
  }
}

InterruptGuard::~InterruptGuard() {
  for (const auto& [signal, before] : before_) sigaction(signal, &before, nullptr);
}

const std::atomic<bool>& InterruptGuard::asked() const { return interrupted; }

}  // namespace quern
