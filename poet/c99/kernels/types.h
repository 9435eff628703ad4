/* Sizes that do not change from step to step: constants beside the code, none of them in the stack. */

/*@ poet_plane */
typedef struct {
    int32_t height, width, out_height, out_width;
    int32_t kernel_height, kernel_width;
    int32_t stride_y, stride_x, pad_y, pad_x, dilation_y, dilation_x;
} poet_plane;

/*@ poet_conv2d_shape */
/* Channels are those of one group. */
typedef struct {
    int32_t images, groups, in_channels, out_channels;
    poet_plane plane;
} poet_conv2d_shape;

/*@ poet_axis */
/*
 * One axis of a convolution by tiles: place i of `made` is element at + i * at_step of what is made. Through tap j of
 * `taps`, `tap_step` apart in the kernel, it reads element i * step + shift + j * shift_step of `size`, or else zero.
 */
typedef struct {
    int32_t size, made, at, at_step, step, shift, shift_step, tap_step, taps;
} poet_axis;

/*@ poet_tiling */
/* A convolution of one group by tiles, and how far apart its images, channels and lines lie. */
typedef struct {
    int32_t images, ins, outs, is_direct;
    int32_t x_image, x_plane, y_image, y_plane, y_line, w_in, w_out, w_line;
    poet_axis rows, columns;
} poet_tiling;

/*@ poet_steps */
/*
 * Over how many channels, lines and taps a tile sums up, and how far apart they lie in its factors; in the left one its rows
 * begin at `rows` from the first. Where it `is_direct` there are no sums of single channels.
 */
typedef struct {
    int32_t channels, lines, taps, a_channel, a_line, a_tap, b_channel, b_line, b_tap, is_direct, rows[8];
} poet_steps;

/*@ poet_stretch */
/* Places of one row: `count` from `first` on, which stand at `place` of a panel. */
typedef struct {
    int32_t image, row, first, count, place;
} poet_stretch;

/*@ poet_pool_shape */
typedef struct {
    int32_t planes, count_padding;
    poet_plane plane;
} poet_pool_shape;

/*@ poet_window */
typedef struct {
    int32_t top, bottom, left, right, count;
} poet_window;

/*@ poet_pad2d_shape */
typedef struct {
    int32_t planes, height, width, out_height, out_width, top, left;
} poet_pad2d_shape;

/*@ poet_resize_shape */
/* How far it is in what is read from one made row, and one column, to the next. */
typedef struct {
    int32_t planes, height, width, out_height, out_width, is_aligned;
    float down, across;
} poet_resize_shape;

/*@ poet_pair */
typedef struct {
    int32_t first, second;
    float share;
} poet_pair;

/*@ poet_matmul_shape */
/* How far apart the rows, columns and inner numbers of y, start, a and b lie. */
typedef struct {
    int32_t rows, inner, columns;
    int32_t y_row, y_column, start_row, start_column, a_row, a_inner, b_inner, b_column;
} poet_matmul_shape;

/*@ poet_matmul_function */
/* Adds a product of 4 x 4 elements over n inner numbers to y */
typedef void (*poet_matmul_function)(float *y, int32_t y_row, int32_t y_column, const float *a, const float *b,
                                     int32_t n, const poet_matmul_shape *s);

/*@ poet_unpack_function */
/* Makes float32 of n elements of a packed row, from `from` on */
typedef void (*poet_unpack_function)(float *y, const uint8_t *row, int32_t from, int32_t n);

/*@ poet_norm_line_function */
/* What batch norm makes of n neighbours of a channel */
typedef void (*poet_norm_line_function)(float *y, const float *x, float mean, float slope, float shift, int32_t n);

/*@ poet_batch_norm_shape */
typedef struct {
    int32_t images, channels, plane;
    float momentum, eps;
} poet_batch_norm_shape;

/*@ poet_group_norm_shape */
/* Channels are those of one group. */
typedef struct {
    int32_t images, groups, channels, plane;
} poet_group_norm_shape;

/*@ poet_layer_norm_shape */
/* Rows of n, how far apart they lie in y (or gy), x, gx and what is saved, and their elements in the first three. */
typedef struct {
    int32_t outer, inner, n;
    int32_t y_outer, y_inner, x_outer, x_inner, gx_outer, gx_inner, saved_outer, saved_inner;
    int32_t y_step, x_step, gx_step;
} poet_layer_norm_shape;

/*@ poet_adamw_shape */
typedef struct {
    int32_t n;
    float beta1_rest, beta2, beta2_rest, eps;
} poet_adamw_shape;

/*@ poet_update */
/*
 * What becomes of a gradient: `apply` takes n neighbouring elements of it, from `at` on, and stores them in p or
 * updates the parameter p and its states m and v.
 */
typedef struct poet_update {
    void (*apply)(const struct poet_update *u, int32_t at, const float *g, int32_t n);
    float *p, *m, *v;
    float numbers[POET_UPDATE_NUMBERS]; /* of the optimizer, in the order of its function's arguments */
} poet_update;
