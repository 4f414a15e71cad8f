"""**Table** of the grids of IQ1 to IQ3: what a code stands for that is one of several weights.

A grid lists points of a lattice, four or eight coordinates each, of which a coordinate is one of a
few ``levels``. They are facts of the formats, which GGML defines (``ggml-common.h``); the package
``gguf`` lists them too. Here the places of a point's levels are bits of a word, the first
coordinate's lowest. Words ascend, so what is stored are differences: first their lower bytes, then
their upper ones, compressed by zlib, in base 85.
"""

from __future__ import annotations

import base64
import functools
import zlib
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
"""The weights of each code: i8[codes, weights]."""


class Points(NamedTuple):
    """The points of a grid: coordinates of each, what these may be, and the words as text."""

    coordinates: int
    levels: tuple[int, ...]
    text: str

    def entries(self) -> Array:
        """The coordinates i8[points, coordinates]."""
        raw = np.frombuffer(zlib.decompress(base64.b85decode(self.text)), np.uint8)
        low, high = raw.reshape(2, -1).astype(np.int64)
        bits = (len(self.levels) - 1).bit_length()
        shifts = np.arange(self.coordinates) * bits
        places = np.cumsum(low | high << 8)[:, None] >> shifts & ((1 << bits) - 1)
        found: Array = np.array(self.levels, np.int8)[places]
        return found


def _ternary() -> Array:
    """Five digits of base 3, counted from -1, that a byte is as a fraction of 256."""
    rest = np.arange(256)[:, None] * 3 ** np.arange(5) % 256
    return (rest * 3 // 256 - 1).astype(np.int8)


def _shifted() -> Array:
    """Eighths: a point of -1, 0 and 1, all its coordinates raised by 1/8, or else lowered."""
    points = 8 * POINTS["iq1"].entries()
    return np.concatenate([points + np.int8(1), points - np.int8(1)])


@functools.cache
def grid(name: str) -> Array:
    """The weights of each code of a grid, i8[codes, weights], read-only."""
    made = MADE[name]() if name in MADE else POINTS[name].entries()
    made.setflags(write=False)
    return made


MADE: Final = {"ternary": _ternary, "iq1_shifted": _shifted}
"""Grids that are computed."""
POINTS: Final[dict[str, Points]] = {
    "iq2_xxs": Points(
        8,
        (8, 25, 43),
        "c-muNVrFJyXXasIV-jcP;oxMJVd9X8XXatmb`i;7Qb?$0<`D#nu}LU0^N7R%X*FeW!3uT*7ljyBpok<;r&*27A)&"
        "WGb@B=-JgnIq5(ZpqOB8o=NU*Ay&+wWj_L`Z;z_Ffn_Qv&099FXOOv~kWF#QLLiLG)})~S#v*{~O4F$W(P(2@cLM"
        "|sv7ehWUK85|M`l9fVt7=db8cSmq49`-Ka;N)OW;Ha@ndi$TL;(PEKK@RUbC;splXv_#b?6H8Ao2h8uJ|+%x$0iY"
        "tiyuI~P*~vRS8A@Xh>7<zkBCfSY1Yx*N=m#2^B?({wtSbc*up>nFcK-lid&iyiyD|1Bap!;ir)ezthO*Bl(52ufP"
        "5x#Yz|~(WJIW9U}R=s1Dnjk003HUK5z",
    ),
    "iq2_xs": Points(
        8,
        (8, 25, 43),
        "c-muNVrFJyXJ%q%2Qnm~G$*qRm}F&7go*%_K!kWWB$;^%AWTJO9#(Cxax_g$T#Cpl1mzo<dBmicoN6G(@UY4N4bf"
        "2G3TNgqaO5ag;K<`jL^FbiOB~q<0}-Zdps@xD3t&R5>>@HiV+{_7nC@WaVbT*Zs$xxi9T5(-0;ESF5lC>z&Q^-kh"
        "-BuG6hGi7=$;|j6UD(KW@;>TOrt^~iH!->?J(CN*~}^%4>Vs~`~WmOz^=(<<`I#JO5?KP*$7g?&o@udm`8H<A4C8"
        "dG=hSLX`f44I4A@Z6cyq*DmZ4kTgHp%@_RO_F*(<O4B}H!4p&k0$P@czz#1Q$x%;6X-#kPB7%-_Zg@gPp$gx}@fk"
        "}=7=np1lZ3WG8m&D?rX&kbqYD{WzGI1PyLO>Y<F})fkr%%S^toA${7t@*63xqB{<Gp~1jY*8FY$Jzn6cd|Ln8Je4"
        "3&uraOl%b#F%3+Mn9?N~C<cs_t7E0W2u8x@Fyb^qltNE367&Tlb}l0;k_beQiJ*%Zv6_TtHCz!BHa9VXArb%pLe@"
        "(Q",
    ),
    "iq2_s": Points(
        8,
        (8, 25, 43),
        "c-qZV&r1S96n1BLt~(4$hgR1XwI4<pffPhVbm$OBHzC$S*y<2PKkyPkbTQ~Zh;E*RZguMr_^0(|XJ?%??I8W~;EZ"
        "qH``-6`@0lQ!5|a{Y;>8J13(stDasV$1y5W-vn8^v{v?-HVHi#|)u(Usbp}<{PXazMg2wFpl&5uGLai6BV6?KGcK"
        "NT{zC;C&XC=)ZS37Srl`Pyl}d0v%DT`b-@CRX;oq+kL^bWWG_&Lc?b0l`#Ju2#HIX;D4iMOn`JF|XRsx+>I>aT$|"
        "}cu}|-;IUki<oOyY>?`AjG_&(<?C5kQ=ZzAAJY46t=g3V+QK-$wrofdEmNu8TI$<q$p-+CKXP>RWRS3Nc%qTa}Rs"
        "DTVf3?r?s}~>Cz)Zey+R3(uJ@?_;!k}LCo6QTedd|fxTFSyz`ozgOM_#)=XdqQqs9Zf>QogrxTFLo-kc`XXswL#X"
        "@@PbG7>);Eipz^4SsccZ-3TE)Il#J4H_Pv<WTE6sJg&<QQdk#@P7Ve<Y*_wIp(Es;c{OXRCH{yhoJ2kKRPLm3lNw"
        "2}NW5B`YC3Cgh1=KVdt#I1;Y{MYKgM5z!GDlpd@oC5oRrD`GEd_tXJ(9<1LIT~>X`fmk}w8l6g1$=B15nK07}YE2"
        "m",
    ),
    "iq3_xxs": Points(
        4,
        (4, 12, 20, 28, 36, 44, 52, 62),
        "c-rNSQBQ<05QMM8(gjMF3aveZcfg$_Xh@9s?3?;_@&ErDi+{sSCfS)xzBvFnNP)`-P<oj%u&Ij_GZ<89A+2DpozG"
        "1T(w%#co)E<C?Iaj=1T$WD&le3Ttuu68sO{>TjDID{$^l4d?nxEkgtW?frj;f+`l|neiI4kYu=$QK=#kstn)ajVw"
        "66Q14NLGwP}9vf%IUlFFq=ujErV<^7TU!@#^U*uwu|_)%H|-a@jO52?`eKpWCK*|*6O9t@2!N%4QM|P|NMRdlN}G"
        "4",
    ),
    "iq3_s": Points(
        4,
        (1, 3, 5, 7, 9, 11, 13, 15),
        "c-rle*-is73`NQHHsfqF?X+}Qq#}?Iyd(bq&v43TKwc6@_PxjUT}p(M5`e@ipm+$3X#8<vA_iM!(Zom;A+e66N|Q"
        "3dK+33K${bH6?T&)TXLQMgwsynqr}B2w99H3g2AVa6Ba4w5n!;&NC^`8+2))FzY7V3d3zE|<v%fP{JPy#pt4_a?7"
        "*e4;?iyVYlm>rPT!<WEaQ5hjcpjzNvd(10JDJQi<vKz9i8rpu@?b;I#xw}76JP<cI7bj2?#2>sGg#ZC!nP_`i#qp"
        "uJYEAgzeXqFZ??EZwMv8=MA)U178wluibGC&fxqnQc9EQQ*N}|5659yo`Kq&v)_Y04N{QhVFK^|D?<?B(nCxj;?D"
        ">4qEIJkGU#&OVx6|VXzL@4nD7skgcp96tb-z$M$Eq)%%k}>K?*IJh^8;e|55W",
    ),
    "iq1": Points(
        8,
        (-1, 0, 1),
        "c-qxf?QYvf5X^p&C-N*>NK@JpW!ZoWr*V+iQECxzfCi3h$LKTk%{zNXN^;v@O#nFt1mDNr?(FRB@)e74sWlh8h{D"
        "YRi`sWLgso8BnM}k=VP5+EX1rg-P+N;dsaoRS7hHBBT1D?e?1iYoL2FhJ)>3+y_E-_iw~zK#B8~!?bW!Zf&a3SpY"
        ";aRk*N|fI7HHyr^q>oOnznb8EG0TvQrOno<AH|-`VJ_F9fqx@66MJgEpQ`T@ygTcO=<uQwou}X5x1R{>hQ7G-<*V"
        "PCRo+UBc;QZnS^tyRIsG{-I2}H4cssV@%v7LG<I)I=lCqWVkcqt$OxfJ_Rz_X*(wkcF!^*e<+C9jXUz02GXX3E73"
        "0=Pi%Yhcsb1BE#J=2?*d%u2ZqtC$RZf*7c(9<KV+?I(5vLcPKl~u0n#+j#))W?8Rd>5W$jpQPjNffQ=nK4c<#Y&K"
        "(`L9zf%gh)&7}v0=MNU_#wkEZCrr9QBUC%jC=lGx?_Q*CCRW*bJ?nqc<G~D7gPA!sfcBBbDw(zEzf+#5Cpq0R3(s"
        "rSI;92;yAE;cG@L2~j99l(tzMR;Gm)wTrg|kU)XjKqR%St=MYK!U-SFuHd-9cC&-$z(^9YvXMmfXJHQ#4Z!9{7vd"
        "VuO4IbX;rEOQ=floDRfhRh~%jyfw<pD5<sH0u$9$;ncN)`rX@a<_E`OZ$=?!fnHjui;C_P2z2h6%X<qtxq&R*+JG"
        "*Nh`JBi%kMAlgT3234!1PjJkw(b&B1;Q$JA+=|#NNBP)y`31o=_mrOeeNhqI_c%!9uWjT4%^hrdKRM2Cn6ISyg_)"
        "NGrxgtYDhF_q(ugF7ztxcnEY}pmg*ipD9`qZ*=Jt{~N5liIn^S}Yzl(8<DP}-ax7bYiY;0iuUW&MiOAlEW<v7BxI"
        "!X?y#S)L4aJ>jB81@+$eR~W)kMY^0S$D6TfT%pg}#<v}e*(rt$I`r}0RJ=m}ZLJ?LGLO{tcWw6pN{k+V?0}@YJW-"
        "~Pmb_x%DD<d{IH~&4OY5^YYP-eY&68)Bk1M&DJ)6qH@AjG;CB)~$TbCBOg@&2u6>F`gEa(+SNqyFPtkr-@x`tnW^"
        "k$Ojyc#qFdsurThqa9pH>gtkUpkUW7JT8AUZV(F7D-Ir?NR1z6qq2S9$9p#9m-MBxzDQGj3Q0v`Bo@C7F+*vp<cJ"
        "g$E%dh<kB1QVV?xK+OhyG!|i(s>DzZvv&tU@7n8|9hvJ{8LDcbM(fu{BFbsm2=NUTS$<xpkdy{bB%gS7yJc{P(S@"
        "Z@Yy=%<nbyYm<Otw{e^}YV+V2|-<2StB~cy?G2--iFqi?7zVN3fR<@rOodFPk_zV0*lPf&9H1fPNUY9{LmXKcD{%"
        "H@{H@",
    ),
}
"""By name."""
