/*
 * Parts of poet_step.c, and below them of poet_step.h, of which a folder gets those that its step needs. The mark above
 * each is its name in poet/c99.
 */

/*@ restore */
/* What a tensor that lives across steps begins with. */
static void restore(poet_net *net, int32_t word, int32_t index)
{
    const poet_span *const span = &poet_kept[index];
    for (int32_t k = 0; k < span->words; ++k) {
        const uint32_t *from = span->first < 0 ? &span->fill : poet_weights + span->first + k;
        memcpy(net->arena + word + k, from, sizeof *from);
    }
}

/*@ move */
/* From one place in the arena to another, which may overlap. */
static void move(poet_net *net, int32_t to, int32_t from, uint32_t size)
{
    memmove(net->arena + to, net->arena + from, size);
}

/*@ page_in */
/* From storage into the arena, the bytes that were written; after a failure no more. */
static void page_in(poet_net *net, int32_t word, uint32_t offset, uint32_t size, int32_t sum)
{
    if (net->failed || net->storage->read(net->storage->context, offset, net->arena + word, size)
        || poet_checksum(0u, net->arena + word, size) != net->sums[sum]) {
        net->failed = 1;
    }
}

/*@ page_out */
/* From the arena into storage; after a failure nothing more is tried. */
static void page_out(poet_net *net, int32_t word, uint32_t offset, uint32_t size, int32_t sum)
{
    poet_writer to;
    poet_begin(&to, net->storage, offset);
    if (net->failed || poet_put(&to, net->arena + word, size) || poet_put_rest(&to)) {
        net->failed = 1;
    }
    net->sums[sum] = to.sum;
}

/*@ home_in */
/* From the place in storage of what lives there between steps. */
static void home_in(poet_net *net, int32_t word, int32_t index, int32_t is_new)
{
    const poet_span *const span = &poet_kept[index];
    const uint32_t side = is_new ? !net->committed : net->side;
    page_in(net, word, home_of(span, side), 4u * (uint32_t)span->words, span->sum);
}

/*@ home_out */
/* To that of its two places which holds nothing that was committed. */
static void home_out(poet_net *net, int32_t word, int32_t index)
{
    const poet_span *const span = &poet_kept[index];
    page_out(net, word, home_of(span, !net->committed), 4u * (uint32_t)span->words, span->sum);
}

/*@ home_of */
/* Where in storage a tensor is that lives there: at one of two places. */
static uint32_t home_of(const poet_span *span, uint32_t side)
{
    return (uint32_t)(side ? span->second : span->home);
}

/*@ op_type */
/* A run of an op: its function, what it takes: places in the arena, sizes, records. */
typedef struct {
    void (*run)(poet_net *net, const int32_t *n);
    const int32_t *numbers;
} poet_op;

/*@ set_learning_rate */
poet_status poet_set_learning_rate(poet_net *net, float learning_rate)
{
    if (!net || !net->arena || !(learning_rate - learning_rate == 0.0f)) {
        return POET_BAD_ARGUMENT;
    }
    net->learning_rate = learning_rate;
    return POET_OK;
}

/*@ set_between */
poet_status poet_set_between(poet_net *net, void (*between)(void *context), void *context)
{
    if (!net || !net->arena) {
        return POET_BAD_ARGUMENT;
    }
    net->between = between;
    net->context = context;
    return POET_OK;
}

/*@ crc */
uint32_t poet_crc(uint32_t crc, const void *bytes, size_t count)
{
    const unsigned char *next = bytes;
    if (!next) {
        return crc;
    }
    while (count--) {
        crc ^= *next++;
        for (int bit = 0; bit < 8; ++bit) {
            crc = crc & 1u ? (crc >> 1) ^ UINT32_C(0xedb88320) : crc >> 1;
        }
    }
    return crc;
}

/*@ state_crc */
uint32_t poet_state_crc(const poet_net *net)
{
    if (!net || !net->arena) {
        return 0u;
    }
    uint32_t crc = UINT32_C(0xffffffff);
    for (int32_t i = 0; i < POET_KEPT; ++i) {
        crc = poet_crc(crc, net->arena + poet_kept[i].word, 4u * (size_t)poet_kept[i].words);
    }
    return ~crc;
}

/*@ declare_numbers */
/*
 * Number `at` of the POET_INPUT_<index>_NUMBERS of an input of whole numbers, from 0 up to
 * POET_INPUT_<index>_ROWS - 1; all of them before each step.
 */
poet_status poet_set_number(poet_net *net, int32_t index, int32_t at, int32_t number);

/*@ declare_homes */
/*
 * Some words of what lives across steps, wherever it is; `from`, `to` and `size` are in bytes. 0 where all
 * went well, else 1: a callback failed, there is no storage yet, there are no such words, or a tensor read as
 * a whole is not what was written.
 */
int poet_kept_read(const poet_net *net, int32_t index, uint32_t from, void *bytes, uint32_t size);

/* Likewise the other way; constants stay as they are, and what lives in storage is written as a whole. */
int poet_kept_write(poet_net *net, int32_t index, uint32_t to, const void *bytes, uint32_t size);

/*@ declare_target */
/* Where the target goes: POET_TARGET_FLOATS of them, anew before every step. */
float *poet_target(poet_net *net);

/*@ declare_class */
/* The class of a row of the batch, 0 to POET_CLASSES - 1; each row's before each step. */
poet_status poet_set_class(poet_net *net, int32_t row, int32_t class_number);

/*@ declare_predict */
/* The forward pass in evaluation mode on inputs filled anew; targets need not be. */
poet_status poet_predict(poet_net *net);

/* What it gave, until inputs are filled or a step is made; sizes as of poet_output. */
const float *poet_predicted(const poet_net *net, int32_t index);

/*@ declare_storage */
/*
 * Where a step keeps POET_PAGE_BYTES of tensors for a while; to be set before the first step.
 * Between steps nothing of worth is there. After POET_STORAGE_FAILED a step was made in part, and
 * none is made until poet_load, or poet_init and this.
 */
poet_status poet_set_storage(poet_net *net, const poet_storage *storage);

/*@ declare_storage_of_homes */
/*
 * Where a step keeps POET_PAGE_BYTES of tensors for a while; to be set before the first step.
 * Between steps nothing of worth is there. After POET_STORAGE_FAILED a step was made in part, and
 * none is made until poet_recover or poet_load gave POET_OK.
 * What is at home in storage is written there by this, as it begins, over what was committed.
 * To go on with that use poet_recover instead (poet_state.h), and this where that gave
 * POET_NO_STATE; where this gave POET_STORAGE_FAILED, call it again.
 */
poet_status poet_set_storage(poet_net *net, const poet_storage *storage);

/*@ init */
poet_status poet_init(poet_net *net, float *arena, uint32_t seed)
{
    if (!net || !arena || (uintptr_t)arena % sizeof(float)) {
        return POET_BAD_ARGUMENT;
    }
    net->arena = arena;
    net->between = 0;
    net->context = 0;
    net->build = POET_BUILD;
    net->learning_rate = @LEARNING_RATE@;
    net->steps = 0u;
    net->seed = seed;
    net->drawn = 0u;
@MEMBERS@    for (int32_t i = 0; i < POET_KEPT; ++i) {
        if (poet_kept[i].word >= 0) {
            restore(net, poet_kept[i].word, i);
        }
    }
    return POET_OK;
}

/*@ train_step */
poet_status poet_train_step(poet_net *net, float *loss)
{
    if (!net || !net->arena@NO_STORAGE@) {
        return POET_BAD_ARGUMENT;
    }
@BEGINS@    for (size_t i = 0; i < sizeof schedule / sizeof schedule[0]; ++i) {
        schedule[i].run(net, schedule[i].numbers);
@FAILED@        if (net->between) {
            net->between(net->context);
        }
    }
@TURNS@    ++net->steps;
    const float made = net->arena[@LOSS@];
    if (loss) {
        *loss = made;
    }
    return made - made < 1.0f ? POET_OK : POET_NOT_FINITE; /* false for NaN, which infinity gives as well */
}

/*@ set_storage */
poet_status poet_set_storage(poet_net *net, const poet_storage *storage)
{
    if (!net || !net->arena || !storage || !storage->read || !storage->write) {
        return POET_BAD_ARGUMENT;
    }
    net->storage = storage;
    return POET_OK;
}

/*@ set_storage_of_homes */
poet_status poet_set_storage(poet_net *net, const poet_storage *storage)
{
    if (!net || !net->arena || !storage || !storage->read || !storage->write) {
        return POET_BAD_ARGUMENT;
    }
    if (!storage->sync || net->steps > 0u) { /* the arena is not as it began */
        return POET_BAD_ARGUMENT;
    }
    net->storage = storage;
    if (fill_homes(net, storage)) {
        net->storage = 0; /* no step on a part of them */
        return POET_STORAGE_FAILED;
    }
    return POET_OK;
}

/*@ predict */
poet_status poet_predict(poet_net *net)
{
    if (!net || !net->arena) {
        return POET_BAD_ARGUMENT;
    }
@BEGINS@    for (size_t i = 0; i < sizeof forward / sizeof forward[0]; ++i) {
        forward[i].run(net, forward[i].numbers);
        if (net->between) {
            net->between(net->context);
        }
    }
    return POET_OK;
}

/*@ set_number */
poet_status poet_set_number(poet_net *net, int32_t index, int32_t at, int32_t number)
{
    const int64_t row = number;
    int32_t first = 0, count = 0, rows = 0;
    switch (index) {
@CASES@    default:
        break;
    }
    if (!net || !net->arena || at < 0 || at >= count || number < 0 || number >= rows) {
        return POET_BAD_ARGUMENT;
    }
    memcpy(net->arena + first + 2 * at, &row, sizeof row);
    return POET_OK;
}

/*@ target */
float *poet_target(poet_net *net)
{
    return net && net->arena ? net->arena + @WORD@ : 0;
}

/*@ set_class */
poet_status poet_set_class(poet_net *net, int32_t row, int32_t class_number)
{
    const int64_t number = class_number;
    const int is_class = class_number >= 0 && class_number < POET_CLASSES;
    if (!net || !net->arena || row < 0 || row >= POET_ROWS
        || !(is_class || class_number == @IGNORED@)) {
        return POET_BAD_ARGUMENT;
    }
    memcpy(net->arena + @WORD@ + 2 * row, &number, sizeof number);
    return POET_OK;
}
