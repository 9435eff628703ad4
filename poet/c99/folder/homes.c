/* Whether there are such words of what lives across steps, and a net begun. */
static int are_words(const poet_net *net, int32_t index, uint32_t from, uint32_t size)
{
    if (!net || !net->arena || index < 0 || index >= POET_KEPT) {
        return 0;
    }
    const uint32_t held = 4u * (uint32_t)poet_kept[index].words;
    return from % 4u == 0u && size % 4u == 0u && from <= held && size <= held - from;
}

int poet_kept_read(const poet_net *net, int32_t index, uint32_t from, void *bytes, uint32_t size)
{
    if (!are_words(net, index, from, size) || !bytes) {
        return 1;
    }
    const poet_span *const span = &poet_kept[index];
#if POET_COMMITS
    if (span->word < 0 && span->home >= 0) {
        const poet_storage *const storage = net->storage;
        if (!storage || storage->read(storage->context, home_of(span, net->side) + from, bytes, size)) {
            return 1;
        }
        return size == 4u * (uint32_t)span->words && poet_checksum(0u, bytes, size) != net->sums[span->sum];
    }
#endif
    for (uint32_t k = 0u; k < size; k += 4u) {
        const void *at = span->first < 0 ? &span->fill : poet_weights + span->first + (from + k) / 4u;
        if (span->word >= 0) {
            at = net->arena + (uint32_t)span->word + (from + k) / 4u;
        }
        memcpy((unsigned char *)bytes + k, at, 4u);
    }
    return 0;
}

int poet_kept_write(poet_net *net, int32_t index, uint32_t to, const void *bytes, uint32_t size)
{
    if (!are_words(net, index, to, size) || !bytes) {
        return 1;
    }
    const poet_span *const span = &poet_kept[index];
#if POET_COMMITS
    if (span->word < 0 && span->home >= 0) {
        poet_writer writer;
        if (!net->storage || size != 4u * (uint32_t)span->words) {
            return 1;
        }
        poet_begin(&writer, net->storage, home_of(span, net->side));
        const int is_bad = poet_put(&writer, bytes, size) || poet_put_rest(&writer);
        net->sums[span->sum] = writer.sum;
        return is_bad;
    }
#endif
    if (span->word >= 0) {
        memcpy(net->arena + (uint32_t)span->word + to / 4u, bytes, size);
    }
    return 0;
}

uint32_t poet_state_crc(const poet_net *net)
{
    uint32_t crc = UINT32_C(0xffffffff);
    for (int32_t i = 0; i < POET_KEPT; ++i) {
        const uint32_t size = 4u * (uint32_t)poet_kept[i].words;
        uint32_t sum = 0u;
        for (uint32_t at = 0u; at < size; at += 64u) {
            unsigned char bytes[64];
            const uint32_t count = size - at < 64u ? size - at : 64u;
            if (poet_kept_read(net, i, at, bytes, count)) {
                return 0u;
            }
            crc = poet_crc(crc, bytes, count);
            sum = poet_checksum(sum, bytes, count);
        }
        if (poet_kept[i].sum >= 0 && !POET_IS_SUM(net, poet_kept[i].sum, sum)) {
            return 0u; /* not what was written there */
        }
    }
    return ~crc;
}

#if POET_COMMITS
/* Writes the first content of what lives in storage and changes; 0 where all went well. */
static int fill_homes(poet_net *net, const poet_storage *storage)
{
    uint32_t words[16] = {0u};
    poet_writer to;
    for (uint32_t slot = 0u; slot < 2u; ++slot) { /* what was committed there counts no more */
        poet_begin(&to, storage, POET_COMMIT_AT + slot * POET_COMMIT_BYTES);
        if (poet_put(&to, words, sizeof words) || poet_put_rest(&to)) {
            return 1;
        }
    }
    if (storage->sync(storage->context)) {
        return 1;
    }
    for (uint32_t slot = 0u; slot < 2u; ++slot) { /* and is not there: a write that did nothing is seen */
        const uint32_t at = POET_COMMIT_AT + slot * POET_COMMIT_BYTES;
        if (storage->read(storage->context, at, words, sizeof words) || words[0] != 0u) {
            return 1;
        }
    }
    for (int32_t i = 0; i < POET_KEPT; ++i) {
        const poet_span *const span = &poet_kept[i];
        if (span->word >= 0 || span->home < 0) {
            continue;
        }
        poet_begin(&to, storage, home_of(span, net->side));
        for (int32_t k = 0; k < span->words; k += 16) {
            const int32_t left = span->words - k, count = left < 16 ? left : 16;
            for (int32_t at = 0; at < count; ++at) {
                words[at] = span->first < 0 ? span->fill : poet_weights[span->first + k + at];
            }
            if (poet_put(&to, words, 4u * (uint32_t)count)) {
                return 1;
            }
        }
        if (poet_put_rest(&to)) {
            return 1;
        }
        net->sums[span->sum] = to.sum;
    }
    return storage->sync(storage->context);
}
#endif
