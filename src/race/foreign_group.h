// A process group that somebody else made, as the data group of a rank: Python's, over whatever backend of
// torch.distributed it knows. Each collective is one call of a function of theirs; fill, check, digest and judgement
// stay here. What goes with a call lies in a mailbox, which the function reads by operators (python_ops.cpp).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <string>

namespace c10d {
class Backend;
}

namespace faultline::race {

class Heartbeat;

// `what`: open, all_gather, reduce_scatter, all_reduce, all_to_all, wait (for collective `number`), close. -> nullptr,
// or what went wrong as a sentence, which lives until the next call.
using ForeignCall = const char* (*)(const char* what, int64_t number);

// Of the call that is going on in this thread.
struct ForeignMail {
  std::string order;         // open: JSON
  at::Tensor output, input;  // a collective
};
const ForeignMail& foreign_mail();

// Opens the group: `order` says where its ranks meet. A collective that is called but does not return is told apart
// from one that is waited for (heartbeat.h): then it is this rank's transport that holds it up.
c10::intrusive_ptr<c10d::Backend> make_foreign_group(ForeignCall call, const std::string& order, int rank, int ranks,
                                                     Heartbeat& heartbeat);

}  // namespace faultline::race
