// A CPU allocator for torch that counts, caps, records and places.
//
// torch asks one process-wide c10::Allocator for every CPU tensor, for the hidden temporaries of its
// kernels and, through ideep, for oneDNN's scratchpads. This one counts them, refuses what exceeds a cap,
// records births and deaths, and places the requests of a recorded step at planned offsets of an arena.
//
// Placing never trusts the plan: a request goes to its offset only if no living block overlaps it there,
// else to the heap, and is counted as a miss. A wrong plan costs memory and speed, not correctness.
//
// What keeps this safe:
// - ideep frees through whichever allocator is registered *then*. So heap blocks are plain c10::alloc_cpu
//   blocks without a header, unknown pointers go back to torch's allocator, and this one stays registered
//   as long as a block lives in an arena.
// - The state is never destroyed: tensors may die in another library's static destructors.
// - A closed arena is unmapped when its last block dies.
//
// library.py mirrors the structs and the C interface at the end. All sizes and offsets are bytes.

#include <ATen/Parallel.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <pthread.h>
#include <sys/mman.h>
#include <torch/version.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <mutex>
#include <new>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

constexpr int64_t kPageBytes = 4096;
constexpr int64_t kOnHeap = -1;  // the offset of a request that the plan leaves on the heap

// Bytes, and the most there have been. Signed: a block may leave through torch's own deleter unseen.
struct Gauge {
  int64_t now = 0, peak = 0;
  void add(int64_t bytes) { peak = std::max(peak, now += bytes); }
};

enum {
  kHeap,       // blocks on torch's heap
  kPlaced,     // blocks in arenas
  kLive,       // both
  kFootprint,  // heap blocks and whole arenas: what the cap bounds
  kOfSteps,    // heap blocks that steps took, less those that they gave back; counts from anywhere
  kGauges
};

struct Counters {
  int64_t requests;   // of more than zero bytes
  int64_t placed;     // went to their planned offset
  int64_t unplanned;  // foreseen, and left on the heap by the plan
  int64_t misses;     // by the replaying thread; not foreseen in this op, or a conflict
  int64_t conflicts;  // foreseen, but a living block was still there
  int64_t foreign;    // by other threads during a replayed step
  int64_t refused;    // over the cap
};

struct Arena {
  char* base;
  int64_t bytes;
  std::map<int64_t, int64_t> taken;  // living blocks: offset of the first byte -> of the one after the last
  bool open = true;
};

struct Block {
  int64_t bytes;
  Arena* arena;       // null: on the heap
  int64_t recording;  // the number of the recording that knows it, as
  int64_t request;    // this one; 0 and 0 if none does
};

// One recorded request. Times are ticks: one per birth, death and mark.
struct Request {
  int64_t bytes, op, born;
  int64_t died = -1, died_op = -1;  // -1: still alive
  int64_t parallel;                 // made inside a parallel region: its order is the scheduler's choice
  int64_t address;
};

struct Slot {
  int64_t bytes, offset;
  bool used = false;
};

struct Plan {
  Arena* arena = nullptr;  // no replay while null
  std::vector<Slot> slots;
  std::vector<size_t> bounds;  // slots bounds[k] to bounds[k + 1] are those of op k
  size_t cursor = 0, end = 0;  // slots of the running op that may still be asked for
};

struct State {
  std::mutex mutex;
  std::unordered_map<void*, Block> blocks;
  Gauge gauges[kGauges];
  Counters counters{};
  int64_t cap = std::numeric_limits<int64_t>::max();
  int64_t scopes = 0;        // how many users want this allocator registered
  int64_t arena_blocks = 0;  // living
  std::thread::id owner;     // the thread that records or replays
  bool recording = false;
  bool counting = false;  // a step of the owner's is under way that is neither recorded nor replayed
  int64_t recordings = 0, tick = 0;
  int64_t op = -1;  // negative: between steps, where nothing is recorded or placed
  std::vector<Request> requests;
  Plan plan;
};

State& state() {
  static State* const instance = new State;
  return *instance;
}

// The state, locked for as long as this lives.
struct Held {
  State& state_ = state();
  std::unique_lock<std::mutex> lock{state_.mutex};
  State* operator->() { return &state_; }
  State& operator*() { return state_; }
};

// The next block of exactly `bytes` that this thread asks for goes to `offset`.
thread_local struct Appointment {
  Arena* arena = nullptr;
  int64_t offset = 0, bytes = 0;
} appointment;

void count_heap(State& s, int64_t bytes) {
  s.gauges[kHeap].add(bytes);
  s.gauges[kFootprint].add(bytes);
}

bool over_cap(const State& s, int64_t bytes) { return bytes > s.cap - s.gauges[kFootprint].now; }

bool is_free(const Arena& arena, int64_t offset, int64_t bytes) {
  if (offset < 0 || offset > arena.bytes || bytes > arena.bytes - offset) return false;
  const auto next = arena.taken.lower_bound(offset);
  if (next != arena.taken.end() && next->first < offset + bytes) return false;
  return next == arena.taken.begin() || std::prev(next)->second <= offset;
}

void enter_op(State& s, int64_t op) {
  s.op = op;
  ++s.tick;
  Plan& plan = s.plan;
  const auto k = static_cast<size_t>(op);
  const bool known = op >= 0 && k + 1 < plan.bounds.size();
  plan.cursor = known ? plan.bounds[k] : 0;
  plan.end = known ? plan.bounds[k + 1] : 0;
  for (size_t i = plan.cursor; i < plan.end; ++i) plan.slots[i].used = false;
}

// Within an op, requests are matched by size in recorded order, so that pool threads may come in any order.
int64_t planned_offset(State& s, int64_t bytes) {
  Plan& plan = s.plan;
  while (plan.cursor < plan.end && plan.slots[plan.cursor].used) ++plan.cursor;
  for (size_t i = plan.cursor; i < plan.end; ++i) {
    Slot& slot = plan.slots[i];
    if (slot.used || slot.bytes != bytes) continue;
    slot.used = true;
    const bool planned = slot.offset != kOnHeap;
    if (!planned || is_free(*plan.arena, slot.offset, bytes)) {
      ++(planned ? s.counters.placed : s.counters.unplanned);
      return slot.offset;
    }
    ++s.counters.conflicts;
    break;
  }
  ++s.counters.misses;
  return kOnHeap;
}

// Whether this thread works for the step that is under way; `parallel`: in a parallel region.
bool takes_part(const State& s, bool parallel) {
  return s.op >= 0 && (parallel || std::this_thread::get_id() == s.owner);
}

// An arena and an offset in it, or kOnHeap.
std::pair<Arena*, int64_t> choose_place(State& s, int64_t bytes, bool participant) {
  if (appointment.arena && appointment.bytes == bytes) {
    const Appointment kept = std::exchange(appointment, {});
    return {kept.arena, is_free(*kept.arena, kept.offset, bytes) ? kept.offset : kOnHeap};
  }
  if (s.plan.arena && participant) return {s.plan.arena, planned_offset(s, bytes)};
  if (s.plan.arena && s.op >= 0) ++s.counters.foreign;
  return {nullptr, kOnHeap};
}

// A block lives at `data` from now on.
void admit(State& s, void* data, Block block, bool participant, bool parallel) {
  if (s.recording && participant) {
    block.recording = s.recordings;
    block.request = static_cast<int64_t>(s.requests.size());
    s.requests.push_back({block.bytes, s.op, s.tick++, -1, -1, parallel, reinterpret_cast<int64_t>(data)});
  }
  const auto [place, fresh] = s.blocks.emplace(data, block);
  if (!fresh) {  // a heap block that left through torch's own deleter
    count_heap(s, -place->second.bytes);
    s.gauges[kLive].add(-place->second.bytes);
    place->second = block;
  }
  s.gauges[kLive].add(block.bytes);
}

void* allocate_bytes(int64_t bytes) {
  const bool parallel = at::in_parallel_region();
  Held held;
  State& s = *held;
  ++s.counters.requests;
  const bool participant = takes_part(s, parallel);
  const auto [arena, offset] = choose_place(s, bytes, participant);
  if (offset != kOnHeap) {
    arena->taken.emplace(offset, offset + bytes);
    ++s.arena_blocks;
    s.gauges[kPlaced].add(bytes);
    admit(s, arena->base + offset, {bytes, arena, 0, 0}, participant, parallel);
    return arena->base + offset;
  }
  if (over_cap(s, bytes)) {
    ++s.counters.refused;
    TORCH_CHECK_WITH(OutOfMemoryError, false, "poet: ", bytes, " bytes asked for with ",
                     s.gauges[kFootprint].now, " in use; the cap is ", s.cap, " bytes");
  }
  void* data = c10::alloc_cpu(static_cast<size_t>(bytes));  // throws where the system has no more
  count_heap(s, bytes);
  if (participant) s.gauges[kOfSteps].add(bytes);
  admit(s, data, {bytes, nullptr, 0, 0}, participant, parallel);
  return data;
}

// The whole pages of some bytes, whose contents nobody needs, to the system.
void give_back(const Arena& arena, int64_t begin, int64_t end) {
  begin = (begin + kPageBytes - 1) / kPageBytes * kPageBytes;
  end = end / kPageBytes * kPageBytes;
  if (begin < end) madvise(arena.base + begin, static_cast<size_t>(end - begin), MADV_DONTNEED);
}

void unmap_if_done(State& s, const Arena* arena) {
  if (arena->open || !arena->taken.empty()) return;
  s.gauges[kFootprint].add(-arena->bytes);
  munmap(arena->base, static_cast<size_t>(arena->bytes));
  delete arena;
}

void detach_if_idle(State& s);

void release(void* data) {
  if (!data) return;
  const bool parallel = at::in_parallel_region();
  Held held;
  State& s = *held;
  const auto place = s.blocks.find(data);
  if (place == s.blocks.end()) {  // allocated by ideep before this allocator was registered
    held.lock.unlock();
    c10::GetDefaultCPUAllocator()->raw_deallocate(data);
    return;
  }
  const Block block = place->second;
  s.blocks.erase(place);
  s.gauges[kLive].add(-block.bytes);
  if (s.recording && block.recording == s.recordings) {
    Request& request = s.requests[static_cast<size_t>(block.request)];
    request.died = s.tick++;
    request.died_op = s.op;
  }
  c10::profiledCPUMemoryReporter().Delete(data);  // before another thread may get the same place
  if (!block.arena) {
    count_heap(s, -block.bytes);
    if (takes_part(s, parallel)) s.gauges[kOfSteps].add(-block.bytes);
    held.lock.unlock();
    c10::free_cpu(data);
    return;
  }
  s.gauges[kPlaced].add(-block.bytes);
  block.arena->taken.erase(static_cast<char*>(data) - block.arena->base);
  --s.arena_blocks;
  unmap_if_done(s, block.arena);
  detach_if_idle(s);
}

struct PlanningAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    TORCH_CHECK(static_cast<int64_t>(bytes) >= 0, "poet: ", bytes, " bytes asked for");
    void* data = bytes ? allocate_bytes(static_cast<int64_t>(bytes)) : nullptr;
    if (data) c10::profiledCPUMemoryReporter().New(data, bytes);
    return {data, data, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t count) const override { default_copy_data(to, from, count); }
};

c10::Allocator* ours() {
  static c10::Allocator* const instance = new PlanningAllocator;
  return instance;
}

// Registering is one pointer store; a thread that allocates meanwhile uses one allocator or the other.
void detach_if_idle(State& s) {
  if (s.scopes || s.arena_blocks || c10::GetCPUAllocator() != ours()) return;
  c10::SetCPUAllocator(c10::GetDefaultCPUAllocator());
}

}  // namespace

#define POET_QUOTED(x) #x
#define POET_TEXT(x) POET_QUOTED(x)
#define POET_API extern "C" __attribute__((visibility("default")))

POET_API const char* poet_torch_version() { return TORCH_VERSION; }
// prebuilt.py looks for this text in the file before anything of it is loaded.
POET_API const char* poet_made_for() {
  return "poet allocator, source " POET_TEXT(POET_SOURCE) ", torch " TORCH_VERSION ", C++11 ABI " POET_TEXT(
      _GLIBCXX_USE_CXX11_ABI) ";";
}
POET_API void* poet_arena_base(const Arena* arena) { return arena->base; }
POET_API void poet_appoint(Arena* arena, int64_t offset, int64_t bytes) { appointment = {arena, offset, bytes}; }
POET_API void poet_mark(int64_t op) { enter_op(*Held(), op); }
POET_API void poet_replay_end() { Held()->plan = {}; }
POET_API int poet_attached() { return c10::GetCPUAllocator() == ours(); }

// 1: registered. 0: someone else's allocator is, or one of a higher priority.
POET_API int poet_attach() {
  static const int guarded = pthread_atfork([] { state().mutex.lock(); }, [] { state().mutex.unlock(); },
                                            [] { state().mutex.unlock(); });
  (void)guarded;  // fails only for want of memory
  Held s;
  if (!poet_attached() && c10::GetCPUAllocator() != c10::GetDefaultCPUAllocator()) return 0;
  c10::SetCPUAllocator(ours());
  if (!poet_attached()) return 0;
  ++s->scopes;
  return 1;
}

POET_API void poet_detach() {
  Held s;
  --s->scopes;
  detach_if_idle(*s);
}

// `gauges` has kGauges entries.
POET_API void poet_read(Gauge* gauges, Counters* counters) {
  Held s;
  std::copy_n(s->gauges, kGauges, gauges);
  *counters = s->counters;
}

// High-water marks of a scope: `saved` takes the old ones, and later gives them back unless surpassed.
POET_API void poet_start_peaks(Gauge* saved) {
  Held s;
  std::copy_n(s->gauges, kGauges, saved);
  for (Gauge& gauge : s->gauges) gauge.peak = gauge.now;
}

POET_API void poet_merge_peaks(const Gauge* saved) {
  Held s;
  for (int i = 0; i < kGauges; ++i) s->gauges[i].peak = std::max(s->gauges[i].peak, saved[i].peak);
}

// Returns the cap before. What is in use already is not refused after the fact.
POET_API int64_t poet_set_cap(int64_t cap) { return std::exchange(Held()->cap, cap); }

// Whether `busy`, or a count, belongs to another thread, whose requests would no longer be known as its own.
bool is_others(const State& s, bool busy) {
  return (busy || s.counting) && s.owner != std::this_thread::get_id();
}

// 1: the requests of this thread are counted as a step's from here to poet_count_end, outside of recordings and
// replays. 0: there is one.
POET_API int poet_count_begin() {
  Held s;
  if (s->plan.arena || s->recording || s->counting) return 0;
  s->owner = std::this_thread::get_id();
  enter_op(*s, 0);
  return s->counting = true;
}

POET_API void poet_count_end() {
  Held s;
  enter_op(*s, -1);
  s->counting = false;
}

// 1: recording. 0: another recording, or another thread's replay, is under way.
POET_API int poet_record_begin() {
  Held s;
  if (is_others(*s, s->plan.arena != nullptr)) return 0;
  if (std::exchange(s->recording, true)) return 0;
  ++s->recordings;
  s->owner = std::this_thread::get_id();
  s->requests.clear();
  return 1;
}

// How many requests there are, and the tick.
POET_API int64_t poet_record_position(int64_t* tick) {
  Held s;
  *tick = s->tick;
  return static_cast<int64_t>(s->requests.size());
}

// Ends the recording; the first `count` requests go to `out`.
POET_API void poet_record_end(int64_t count, Request* out) {
  Held s;
  s->recording = false;
  std::copy_n(s->requests.begin(), count, out);
  s->requests = {};
}

// An arena of whole pages. Null: the cap (`refused` is 1) or the system refuses it.
POET_API Arena* poet_arena_open(int64_t bytes, int huge_pages, int* refused) {
  Held s;
  if ((*refused = over_cap(*s, bytes))) return nullptr;
  const auto size = static_cast<size_t>(bytes);
  void* base = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return nullptr;
  madvise(base, size, huge_pages ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  s->gauges[kFootprint].add(bytes);
  return new Arena{static_cast<char*>(base), bytes, {}};
}

POET_API void poet_arena_close(Arena* arena) {
  Held s;
  if (s->plan.arena == arena) s->plan = {};
  arena->open = false;
  int64_t begin = 0;  // whole pages between living blocks go back at once
  for (const auto& [first, after] : arena->taken) {
    give_back(*arena, begin, first);
    begin = after;
  }
  give_back(*arena, begin, arena->bytes);
  unmap_if_done(*s, arena);
}

// How many blocks live in it.
POET_API int64_t poet_arena_blocks(const Arena* arena) {
  Held s;
  return static_cast<int64_t>(arena->taken.size());
}

// 1: replaying. 0: another replay, or another thread's recording, is under way. -1: no memory for the plan.
// `bounds` has `ops` + 1 entries.
POET_API int poet_replay_begin(Arena* arena, int64_t ops, const int64_t* bounds, int64_t slots,
                               const int64_t* bytes, const int64_t* offsets) {
  Held s;
  if (s->plan.arena || is_others(*s, s->recording)) return 0;
  Plan plan{arena};
  try {
    plan.bounds.assign(bounds, bounds + ops + 1);
    plan.slots.reserve(static_cast<size_t>(slots));
  } catch (const std::bad_alloc&) {
    return -1;
  }
  for (int64_t i = 0; i < slots; ++i) plan.slots.push_back({bytes[i], offsets[i]});
  s->owner = std::this_thread::get_id();
  s->plan = std::move(plan);
  enter_op(*s, -1);
  return 1;
}
