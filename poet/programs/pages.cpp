// Kernels for ExecuTorch's runtime that write tensors to a file and read them back, see pages.py.
//
// The file has no name, so that nothing is left of it, and each thread has its own: what a step pages out it
// pages in itself. It is made at the first page in the folder $POET_PAGES, else in the working folder.

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#define C10_USING_CUSTOM_GENERATED_MACROS
#include <executorch/runtime/core/evalue.h>
#include <executorch/runtime/kernel/kernel_runtime_context.h>
#include <executorch/runtime/kernel/operator_registry.h>

namespace {

using executorch::aten::Tensor;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::Kernel;
using executorch::runtime::KernelRuntimeContext;
using executorch::runtime::Span;

class PageFile {
 public:
  ~PageFile() { forget(); }

  int descriptor() {
    if (process_ != getpid()) {  // after a fork both would write to one file
      forget();
      const char* folder = std::getenv("POET_PAGES");
      std::string path = std::string(folder && *folder ? folder : ".") + "/poet-pages-XXXXXX";
      descriptor_ = mkostemp(path.data(), O_CLOEXEC);
      if (descriptor_ < 0) return -1;
      unlink(path.c_str());
      process_ = getpid();
    }
    return descriptor_;
  }

 private:
  void forget() {
    if (descriptor_ >= 0) close(descriptor_);
    descriptor_ = -1;
  }

  int descriptor_ = -1;
  pid_t process_ = -1;
};

thread_local PageFile page_file;

// Transfers all bytes of a page with pread or pwrite; fails the call where that cannot be.
template <typename Transfer, typename Bytes>
void transfer(KernelRuntimeContext& context, Transfer step, Bytes bytes, size_t size_bytes, off_t offset_bytes) {
  const int file = page_file.descriptor();
  while (file >= 0 && size_bytes > 0) {
    const ssize_t done_bytes = step(file, bytes, size_bytes, offset_bytes);
    if (done_bytes < 0 && errno == EINTR) continue;
    if (done_bytes <= 0) {
      if (done_bytes == 0) errno = EIO;  // the page ends early
      break;
    }
    bytes += done_bytes;
    size_bytes -= static_cast<size_t>(done_bytes);
    offset_bytes += done_bytes;
  }
  if (file < 0 || size_bytes > 0) {
    ET_LOG(Error, "poet: a page cannot be moved: %s", std::strerror(errno));
    context.fail(Error::AccessFailed);
  }
}

// page_out_(Tensor(a!) self, Tensor page, int offset_bytes) -> Tensor(a!)
void page_out(KernelRuntimeContext& context, Span<EValue*> arguments) {
  const Tensor& page = arguments[1]->toTensor();
  transfer(context, pwrite, page.const_data_ptr<char>(), page.nbytes(), arguments[2]->toInt());
}

// page_in.out(Tensor file, int[] shape, ScalarType dtype, int offset_bytes, *, Tensor(a!) out) -> Tensor(a!)
void page_in(KernelRuntimeContext& context, Span<EValue*> arguments) {
  const Tensor& page = arguments[4]->toTensor();
  transfer(context, pread, page.mutable_data_ptr<char>(), page.nbytes(), arguments[3]->toInt());
}

const bool is_registered = [] {
  const Kernel kernels[] = {Kernel("poet::page_out_", page_out), Kernel("poet::page_in.out", page_in)};
  for (const Kernel& known : executorch::runtime::get_registered_kernels()) {
    if (std::strcmp(known.name_, kernels[0].name_) == 0) return true;  // from a copy of this library
  }
  return executorch::runtime::register_kernels({kernels, 2}) == Error::Ok;
}();

}  // namespace
