// Streams of the test backend, and a watch over them. The device computes at once, so nothing can come too early there;
// what the watch asks is whether it could on a device that computes later. Each stream knows how far it may rely on the
// others: by events that it was made to wait for, and by what the host has seen end. An operator whose memory another
// stream writes, or reads while this one writes, without such an order is a race, and is kept as a sentence.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <string>
#include <vector>

namespace toy {

c10::Stream current_stream();  // of this thread
c10::Stream exchange_stream(c10::Stream stream);
c10::Stream next_stream();

void record_event(void** event, const c10::Stream& stream);
void block_by_event(const void* event, const c10::Stream& stream);
void host_has_seen(const void* event);
void host_has_seen(const c10::Stream& stream);
void host_has_seen_all();
void destroy_event(void* event);

void watch_streams(bool on);  // forgets what it knew
bool streams_are_watched();
// An operator, or a collective, uses this memory on the current stream.
void touches(const std::string& who, const at::Tensor& x, bool writes);
void forget_memory(const void* begin, std::size_t bytes);  // it was freed
std::vector<std::string> races();

}  // namespace toy
