// Succeeds where a program of this compiler uses the shared libstdc++, as torch does. A program with a copy of its own shares
// half of its symbols with torch: locales of one are freed by the other, and it aborts when an operator is registered.
#include <link.h>

#include <cstring>
#include <locale>

namespace {

int names_the_runtime(dl_phdr_info* object, std::size_t /*size*/, void* /*data*/) {
  return std::strstr(object->dlpi_name, "libstdc++.so") != nullptr ? 1 : 0;
}

}  // namespace

int main() {
  const bool works = std::locale().name() == "C";  // so that the library is linked whatever the linker's defaults
  return works && dl_iterate_phdr(names_the_runtime, nullptr) == 1 ? 0 : 1;
}
