// How large a dead zone is. One observation only bounds it: the threshold lies above everything that was lost and below
// everything that was kept in the same columns, and rows with one huge value and many small ones, as a model's own
// activations are, leave a gap of a hundredfold between the two. So the bounds of all observations of a place are put
// together, and where a gap stays the words say so.
#pragma once

#include <limits>
#include <string>

namespace faultline::diagnose {

struct Bounds {
  double lost = 0;                                        // the largest that was
  double kept = std::numeric_limits<double>::infinity();  // the smallest that was

  void add(double size, bool is_lost);
  void add(const Bounds& other);
  bool agree() const;  // a threshold lies between them, with what rounding of the reference allows
};

struct Zone {
  Bounds relative;  // to the largest of its row
  Bounds absolute;

  void add(const Zone& other) { relative.add(other.relative), absolute.add(other.absolute); }
  std::string words() const;  // "threshold about 0.05 of the row's largest"
};

}  // namespace faultline::diagnose
