#include "base/files/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.h"

namespace faultline {
namespace {

std::size_t size_of(const FileDescriptor& descriptor, const std::filesystem::path& path) {
  struct stat status = {};
  if (::fstat(descriptor.get(), &status) != 0) fail_with_errno(path, "inspect", errno);
  if (!S_ISREG(status.st_mode)) throw UsageError(fmt::format("{} is not a regular file", path.string()));
  return static_cast<std::size_t>(status.st_size);
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path)
    : path_(path), descriptor_(open_file(path, O_RDONLY | O_NONBLOCK)) {  // a named pipe must not hang us
  const std::size_t size = size_of(descriptor_, path);
  if (size == 0) return;  // nothing to map
  void* memory = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor_.get(), 0);
  if (memory == MAP_FAILED) fail_with_errno(path, "map into memory", errno);
  bytes_ = {static_cast<const std::byte*>(memory), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

std::string_view MappedFile::text(std::size_t begin, std::size_t count) const {
  FL_ASSERT(begin <= bytes_.size() && count <= bytes_.size() - begin);
  return {reinterpret_cast<const char*>(bytes_.data()) + begin, count};
}

void MappedFile::check_unchanged() const {
  const std::size_t size = size_of(descriptor_, path_);
  if (size >= bytes_.size()) return;
  throw RuntimeFailure(
      fmt::format("{}: had {} bytes when it was opened and has {} now", path_.string(), bytes_.size(), size));
}

void MappedFile::forget(std::span<const std::byte> part) const {
  if (part.empty()) return;
  FL_ASSERT(part.data() >= bytes_.data() && part.data() + part.size() <= bytes_.data() + bytes_.size());
  static const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const auto first = static_cast<std::size_t>(part.data() - bytes_.data());  // the mapping itself begins a page
  const std::size_t begin = (first + page - 1) / page * page, end = (first + part.size()) / page * page;
  if (begin < end) ::madvise(const_cast<std::byte*>(bytes_.data()) + begin, end - begin, MADV_DONTNEED);  // may fail
}

}  // namespace faultline
