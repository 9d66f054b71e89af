#include "streams.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>

#include "host.h"

namespace toy {
namespace {

constexpr int64_t kStreams = 5;  // the default one and a pool
constexpr std::size_t kMostRaces = 20;

using Clock = std::array<int64_t, kStreams>;  // of each stream, how many of its uses are known to be over

void join(Clock& clock, const Clock& other) {
  for (std::size_t i = 0; i < clock.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}

struct Use {
  uintptr_t begin, end;
  std::size_t stream;
  int64_t number;  // of that stream's uses
  bool writes;
  std::string who;
};

struct Watch {
  std::array<Clock, kStreams> knows{};
  Clock host{};
  std::vector<Use> uses;
  std::vector<std::string> races;
};

std::mutex mutex;
Watch seen;
std::atomic<bool> watched{false};
thread_local c10::StreamId current = 0;

c10::Stream stream_of(c10::StreamId id) {
  return id == 0 ? c10::Stream(c10::Stream::DEFAULT, c10::Device(kType, 0))
                 : c10::Stream(c10::Stream::UNSAFE, c10::Device(kType, 0), id);
}
std::size_t index_of(const c10::Stream& stream) { return static_cast<std::size_t>(stream.id()); }

const char* verb(bool writes) { return writes ? "writes" : "reads"; }

void check(const Use& now, const Use& before) {
  if (before.stream == now.stream || !(before.writes || now.writes)) return;
  if (seen.knows[now.stream][before.stream] >= before.number || seen.races.size() >= kMostRaces) return;
  seen.races.push_back(c10::str(now.who, " on stream ", now.stream, " ", verb(now.writes), " memory that ", before.who,
                                " on stream ", before.stream, " ", verb(before.writes), ", and does not wait for it"));
}

}  // namespace

c10::Stream current_stream() { return stream_of(current); }

c10::Stream exchange_stream(c10::Stream stream) {
  const c10::Stream before = current_stream();
  current = stream.id();
  return before;
}

c10::Stream next_stream() {
  static std::atomic<int64_t> given{0};
  return stream_of(1 + given++ % (kStreams - 1));
}

void record_event(void** event, const c10::Stream& stream) {
  if (!watched) return;
  const std::lock_guard<std::mutex> lock(mutex);
  if (*event == nullptr) *event = new Clock{};
  *static_cast<Clock*>(*event) = seen.knows[index_of(stream)];
}

void block_by_event(const void* event, const c10::Stream& stream) {
  if (event == nullptr) return;
  const std::lock_guard<std::mutex> lock(mutex);
  join(seen.knows[index_of(stream)], *static_cast<const Clock*>(event));
}

void host_has_seen(const void* event) {
  if (event == nullptr) return;
  const std::lock_guard<std::mutex> lock(mutex);
  join(seen.host, *static_cast<const Clock*>(event));
}

void host_has_seen(const c10::Stream& stream) {
  if (!watched) return;
  const std::lock_guard<std::mutex> lock(mutex);
  join(seen.host, seen.knows[index_of(stream)]);
}

void host_has_seen_all() {
  for (c10::StreamId id = 0; id < kStreams; ++id) host_has_seen(stream_of(id));
}

void destroy_event(void* event) { delete static_cast<Clock*>(event); }

void watch_streams(bool on) {
  const std::lock_guard<std::mutex> lock(mutex);
  seen = {};
  watched = on;
}

bool streams_are_watched() { return watched; }

void touches(const std::string& who, const at::Tensor& x, bool writes) {
  if (!watched || !x.defined() || x.device().type() != kType || x.numel() == 0) return;
  int64_t last = 0;
  for (int64_t dim = 0; dim < x.dim(); ++dim) last += (x.size(dim) - 1) * x.stride(dim);
  const std::lock_guard<std::mutex> lock(mutex);
  const auto begin = reinterpret_cast<uintptr_t>(x.const_data_ptr());
  const std::size_t stream = static_cast<std::size_t>(current);
  join(seen.knows[stream], seen.host);  // given to the stream after the host saw that end
  const Use now{begin,  begin + static_cast<uintptr_t>((last + 1) * static_cast<int64_t>(x.element_size())),
                stream, ++seen.knows[stream][stream],
                writes, who};
  for (const Use& before : seen.uses)
    if (before.begin < now.end && now.begin < before.end) check(now, before);
  // What waits for this use waits for what it has waited for: a write stands for all before it, a read for its like.
  std::erase_if(seen.uses, [&](const Use& before) {
    return now.begin <= before.begin && before.end <= now.end &&
           (writes || (!before.writes && before.stream == stream));
  });
  seen.uses.push_back(now);
}

void forget_memory(const void* begin, std::size_t bytes) {
  if (!watched) return;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto first = reinterpret_cast<uintptr_t>(begin);
  std::erase_if(seen.uses, [&](const Use& use) { return first <= use.begin && use.begin < first + bytes; });
}

std::vector<std::string> races() {
  const std::lock_guard<std::mutex> lock(mutex);
  return seen.races;
}

}  // namespace toy
